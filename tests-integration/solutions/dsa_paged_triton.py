"""Sparse multi-head latent attention over chosen slots of a paged cache, in destination-passing style.

A token's heads are rows of one tile. Its slots are split among programs if there are few tokens; a second
kernel joins what they find. A slot counts tokens, page by page, whatever the size of a page; negative
slots are padding.
"""

import math

import torch
import triton
import triton.language as tl

from .shared.kernels import attend_to, join, product

PROGRAMS = 264
"""Number of programs that keep a device busy: two for each multiprocessor of an H200."""
SHORTEST = 64
"""Fewer slots than this are not worth a program of their own."""
KEYS = 64


@triton.jit
def attend(
    q_nope, q_pe, ckv_cache, kpe_cache, slots, output, lse, scale, count,
    HEADS: tl.constexpr, CKV: tl.constexpr, KPE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    SHARE: tl.constexpr, SPLITS: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    token, split = tl.program_id(0), tl.program_id(1)
    slots += token.to(tl.int64) * count
    share = split * SHARE + tl.arange(0, SHARE)
    is_used = tl.load(slots + share, mask=share < count, other=-1) >= 0
    stop = tl.max(tl.where(is_used, share + 1, 0), 0)  # what is behind the last slot is padding

    rows = tl.arange(0, ROWS)
    wide = tl.arange(0, CKV)
    narrow = tl.arange(0, KPE)
    inside = rows < HEADS
    row = token * HEADS + rows
    nope = tl.load(q_nope + row[:, None] * CKV + wide[None, :], mask=inside[:, None], other=0.0)
    pe = tl.load(q_pe + row[:, None] * KPE + narrow[None, :], mask=inside[:, None], other=0.0)
    peak = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, CKV), tl.float32)
    for begin in range(split * SHARE, stop, KEYS):
        at = begin + tl.arange(0, KEYS)
        slot = tl.load(slots + at, mask=at < stop, other=-1).to(tl.int64)
        valid = slot >= 0
        ckv = tl.load(ckv_cache + slot[:, None] * CKV + wide[None, :], mask=valid[:, None], other=0.0)
        kpe = tl.load(kpe_cache + slot[:, None] * KPE + narrow[None, :], mask=valid[:, None], other=0.0)
        logits = product(nope, tl.trans(ckv), INTERPRETED) + product(pe, tl.trans(kpe), INTERPRETED)
        logits = tl.where(valid[None, :], logits * scale, -float("inf"))
        found, total, peak = attend_to(logits, ckv, found, total, peak, True, INTERPRETED)

    to = row * SPLITS + split
    tl.store(lse + to, peak + tl.log2(total), mask=inside)
    found = found / tl.where(total > 0, total, 1.0)[:, None]
    there = output + to.to(tl.int64)[:, None] * CKV + wide[None, :]
    tl.store(there, found.to(output.dtype.element_ty), mask=inside[:, None])


def run(q_nope, q_pe, ckv_cache, kpe_cache, sparse_indices, sm_scale, output, lse):
    tokens, heads, ckv = q_nope.shape
    count = sparse_indices.shape[-1]
    wanted = min(triton.cdiv(PROGRAMS, max(tokens, 1)), triton.cdiv(count, SHORTEST))
    share = triton.next_power_of_2(triton.cdiv(count, max(wanted, 1)))
    splits = max(triton.cdiv(count, share), 1)
    parts, parts_lse = output, lse
    if splits > 1:
        parts = torch.empty((tokens, heads, splits, ckv), dtype=torch.float32, device=q_nope.device)
        parts_lse = torch.empty((tokens, heads, splits), dtype=torch.float32, device=q_nope.device)
    attend[tokens, splits](
        q_nope, q_pe, ckv_cache, kpe_cache, sparse_indices, parts, parts_lse, sm_scale * math.log2(math.e), count,
        HEADS=heads, CKV=ckv, KPE=q_pe.shape[2], ROWS=max(16, triton.next_power_of_2(heads)), KEYS=KEYS,
        SHARE=share, SPLITS=splits, INTERPRETED=not q_nope.is_cuda, num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        join[tokens * heads, triton.cdiv(ckv, 128)](
            parts, parts_lse, output, lse,
            DIM=ckv, COLUMNS=min(ckv, 128), SPLITS=splits, ALL=triton.next_power_of_2(splits), SOME=32,
        )  # fmt: skip
