"""Decode of multi-head latent attention over a paged cache, value-returning.

All heads are rows of one tile, for they share their keys, whose compressed part is their value too. The
keys of a sequence are split among programs; a second kernel joins what they find. Definitions with
pages of more than one token pass ``kv_last_page_len`` before ``sm_scale``.

``kv_indices`` may be a longer buffer: only offsets say which pages are read, and they are read on the device.
The length of the buffer decides among how many programs the keys are split.
"""

import math

import torch
import triton
import triton.language as tl

from .shared.kernels import attend_to, join, product

PROGRAMS = 264
"""Number of programs that keep a device busy: two for each multiprocessor of an H200."""
SHORTEST = 128
"""Fewer keys than this are not worth a program of their own."""
KEYS = 32


@triton.jit
def attend(
    q_nope, q_pe, ckv_cache, kpe_cache, kv_indptr, kv_indices, last_page_len, output, lse, scale,
    PAGE: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr, KPE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    sequence, split = tl.program_id(0), tl.program_id(1)
    first = tl.load(kv_indptr + sequence)
    pages = tl.load(kv_indptr + sequence + 1) - first
    length = pages * PAGE
    if last_page_len is not None:
        length += tl.load(last_page_len + sequence) - PAGE
    length = tl.where(pages > 0, length, 0)
    share = tl.cdiv(tl.cdiv(length, SPLITS), KEYS) * KEYS
    start = split * share
    stop = tl.minimum(start + share, length)

    rows = tl.arange(0, ROWS)
    wide = tl.arange(0, CKV)
    narrow = tl.arange(0, KPE)
    inside = rows < HEADS
    row = sequence * HEADS + rows
    nope = tl.load(q_nope + row[:, None] * CKV + wide[None, :], mask=inside[:, None], other=0.0)
    pe = tl.load(q_pe + row[:, None] * KPE + narrow[None, :], mask=inside[:, None], other=0.0)
    peak = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, CKV), tl.float32)
    for begin in range(start, stop, KEYS):
        token = begin + tl.arange(0, KEYS)
        valid = token < stop
        page = tl.load(kv_indices + first + token // PAGE, mask=valid, other=0).to(tl.int64)
        place = page * PAGE + token % PAGE
        ckv = tl.load(ckv_cache + place[:, None] * CKV + wide[None, :], mask=valid[:, None], other=0.0)
        kpe = tl.load(kpe_cache + place[:, None] * KPE + narrow[None, :], mask=valid[:, None], other=0.0)
        logits = product(nope, tl.trans(ckv), INTERPRETED) + product(pe, tl.trans(kpe), INTERPRETED)
        logits = tl.where(valid[None, :], logits * scale, -float("inf"))
        found, total, peak = attend_to(logits, ckv, found, total, peak, False, INTERPRETED)

    to = row * SPLITS + split
    tl.store(lse + to, peak + tl.log2(total), mask=inside)
    found = found / tl.where(total > 0, total, 1.0)[:, None]
    there = output + to.to(tl.int64)[:, None] * CKV + wide[None, :]
    tl.store(there, found.to(output.dtype.element_ty), mask=inside[:, None])


def run(q_nope, q_pe, ckv_cache, kpe_cache, kv_indptr, kv_indices, *rest):
    *last_page_len, sm_scale = rest
    batch, heads, ckv = q_nope.shape
    page = ckv_cache.shape[1]
    splits = max(1, min(triton.cdiv(PROGRAMS, max(batch, 1)), triton.cdiv(len(kv_indices) * page, SHORTEST), 128))
    output = torch.empty_like(q_nope)
    lse = torch.empty((batch, heads), dtype=torch.float32, device=q_nope.device)
    parts, parts_lse = output, lse
    if splits > 1:
        parts = torch.empty((batch, heads, splits, ckv), dtype=torch.float32, device=q_nope.device)
        parts_lse = torch.empty((batch, heads, splits), dtype=torch.float32, device=q_nope.device)
    attend[batch, splits](
        q_nope, q_pe, ckv_cache, kpe_cache, kv_indptr, kv_indices, last_page_len[0] if last_page_len else None,
        parts, parts_lse, sm_scale * math.log2(math.e),
        PAGE=page, HEADS=heads, CKV=ckv, KPE=q_pe.shape[2], ROWS=max(16, triton.next_power_of_2(heads)),
        KEYS=KEYS, SPLITS=splits, INTERPRETED=not q_nope.is_cuda, num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        join[batch * heads, triton.cdiv(ckv, 128)](
            parts, parts_lse, output, lse,
            DIM=ckv, COLUMNS=min(ckv, 128), SPLITS=splits, ALL=triton.next_power_of_2(splits), SOME=32,
        )  # fmt: skip
    return output, lse
