"""Decode of grouped-query attention over a paged cache, in destination-passing style.

The keys of a sequence are split among programs; a second kernel joins what they find. All query heads
of one key head are rows of the same tile. Definitions with pages of more than one token pass
``kv_last_page_len`` before ``sm_scale``. Queries and caches may be views, as those that engines cut out
of one tensor; only a head must be contiguous.

``kv_indices`` may be a longer buffer: only offsets say which pages are read, and they are read on the device.
The length of the buffer decides among how many programs the keys of a sequence are split. Joining takes a second
kernel, so that short sequences, and those of a batch that keeps the device busy anyway, are not split.
"""

import math

import torch
import triton
import triton.language as tl

from .shared.kernels import attend_to, join, product

PROGRAMS = 264
"""Number of programs that keep a device busy: two for each multiprocessor of an H200."""
SHORTEST = 256
"""Fewer keys than this are not worth a program of their own."""
KEYS = 64


@triton.jit
def attend(
    q, k_cache, v_cache, kv_indptr, kv_indices, last_page_len, output, lse, scale,
    Q_ROW, Q_HEAD, K_PAGE, K_TOKEN, K_HEAD, V_PAGE, V_TOKEN, V_HEAD,
    PAGE: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    sequence, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
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
    depth = tl.arange(0, DIM)
    inside = rows < GROUP
    row = (sequence * HEADS + head) * GROUP + rows
    place = sequence.to(tl.int64) * Q_ROW + (head * GROUP + rows) * Q_HEAD
    queries = tl.load(q + place[:, None] + depth[None, :], mask=inside[:, None], other=0.0)
    peak = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, DIM), tl.float32)
    k_cache += head * K_HEAD
    v_cache += head * V_HEAD
    for begin in range(start, stop, KEYS):
        token = begin + tl.arange(0, KEYS)
        valid = token < stop
        page = tl.load(kv_indices + first + token // PAGE, mask=valid, other=0).to(tl.int64)
        key_place = page * K_PAGE + token % PAGE * K_TOKEN
        value_place = page * V_PAGE + token % PAGE * V_TOKEN
        keys = tl.load(k_cache + key_place[:, None] + depth[None, :], mask=valid[:, None], other=0.0)
        values = tl.load(v_cache + value_place[:, None] + depth[None, :], mask=valid[:, None], other=0.0)
        logits = product(queries, tl.trans(keys), INTERPRETED) * scale
        logits = tl.where(valid[None, :], logits, -float("inf"))
        found, total, peak = attend_to(logits, values, found, total, peak, False, INTERPRETED)

    to = row * SPLITS + split
    tl.store(lse + to, peak + tl.log2(total), mask=inside)
    found = found / tl.where(total > 0, total, 1.0)[:, None]
    there = output + to.to(tl.int64)[:, None] * DIM + depth[None, :]
    tl.store(there, found.to(output.dtype.element_ty), mask=inside[:, None])


def run(q, k_cache, v_cache, kv_indptr, kv_indices, *rest):
    *last_page_len, sm_scale, output, lse = rest
    batch, query_heads, dim = q.shape
    _, page, heads, _ = k_cache.shape
    group = query_heads // heads
    long = 2 * len(kv_indices) * page // max(batch, 1)  # twice the average: lengths differ, as the device knows
    splits = max(1, min(PROGRAMS // max(batch * heads, 1), long // SHORTEST, 128))
    parts, parts_lse = output, lse
    if splits > 1:
        parts = torch.empty((batch, query_heads, splits, dim), dtype=torch.float32, device=q.device)
        parts_lse = torch.empty((batch, query_heads, splits), dtype=torch.float32, device=q.device)
    attend[batch, heads, splits](
        q, k_cache, v_cache, kv_indptr, kv_indices, last_page_len[0] if last_page_len else None,
        parts, parts_lse, sm_scale * math.log2(math.e),
        *q.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3],
        PAGE=page, HEADS=heads, GROUP=group, DIM=dim, ROWS=max(16, triton.next_power_of_2(group)),
        KEYS=KEYS, SPLITS=splits, INTERPRETED=not q.is_cuda, num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        join[batch * query_heads, triton.cdiv(dim, 128)](
            parts, parts_lse, output, lse,
            DIM=dim, COLUMNS=min(dim, 128), SPLITS=splits, ALL=triton.next_power_of_2(splits), SOME=32,
        )  # fmt: skip
