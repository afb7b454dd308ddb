"""Causal prefill of grouped-query attention over a paged cache, value-returning.

A row is one head of one query; the rows of a sequence that share a key head lie side by side, so no
group size wastes any. A program takes ROWS of them. Which sequence it works for follows from the
offsets alone: sequence b has the programs from ``offset[b] * GROUP // ROWS + b`` on, which are enough
for it. Definitions with pages of more than one token pass ``kv_last_page_len`` before ``sm_scale``. Queries and
caches may be views, as those that engines cut out of one tensor; only a head must be contiguous.
"""

import math

import torch
import triton
import triton.language as tl

from .shared.kernels import attend_to, product

KEYS = 128


@triton.jit
def sweep(
    found, total, peak, queries, seen, begin, end, k_cache, v_cache, indices, scale, K_PAGE, K_TOKEN, V_PAGE, V_TOKEN,
    PAGE: tl.constexpr, DIM: tl.constexpr, KEYS: tl.constexpr,
    MASKED: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Attend to the keys from begin to end; a row sees `seen` keys, which matters if MASKED."""
    depth = tl.arange(0, DIM)
    for start in range(begin, end, KEYS):
        token = start + tl.arange(0, KEYS)
        if MASKED:
            valid = token < end
            page = tl.load(indices + token // PAGE, mask=valid, other=0).to(tl.int64)
            key_place = page * K_PAGE + token % PAGE * K_TOKEN
            value_place = page * V_PAGE + token % PAGE * V_TOKEN
            keys = tl.load(k_cache + key_place[:, None] + depth[None, :], mask=valid[:, None], other=0.0)
            values = tl.load(v_cache + value_place[:, None] + depth[None, :], mask=valid[:, None], other=0.0)
        else:
            page = tl.load(indices + token // PAGE).to(tl.int64)
            key_place = page * K_PAGE + token % PAGE * K_TOKEN
            value_place = page * V_PAGE + token % PAGE * V_TOKEN
            keys = tl.load(k_cache + key_place[:, None] + depth[None, :])
            values = tl.load(v_cache + value_place[:, None] + depth[None, :])
        logits = product(queries, tl.trans(keys), INTERPRETED) * scale
        if MASKED:
            logits = tl.where(token[None, :] < seen[:, None], logits, -float("inf"))
        found, total, peak = attend_to(logits, values, found, total, peak, MASKED, INTERPRETED)
    return found, total, peak


@triton.jit
def attend(
    q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, last_page_len, output, lse, scale, sequences,
    Q_ROW, Q_HEAD, K_PAGE, K_TOKEN, K_HEAD, V_PAGE, V_TOKEN, V_HEAD,
    PAGE: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, SEQUENCES: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    place = tl.num_programs(0) - 1 - tl.program_id(0)  # the last queries have the most work: they go first
    head = tl.program_id(1)
    every = tl.arange(0, SEQUENCES)
    bases = tl.load(qo_indptr + every, mask=every < sequences, other=0) * GROUP // ROWS + every
    sequence = tl.sum(((bases <= place) & (every < sequences)).to(tl.int32), 0) - 1
    begin = tl.load(qo_indptr + sequence)
    queries_count = tl.load(qo_indptr + sequence + 1) - begin
    start = (place - begin * GROUP // ROWS - sequence) * ROWS
    if start < queries_count * GROUP:
        first = tl.load(kv_indptr + sequence)
        pages = tl.load(kv_indptr + sequence + 1) - first
        length = pages * PAGE
        if last_page_len is not None:
            length += tl.load(last_page_len + sequence) - PAGE
        length = tl.where(pages > 0, length, 0)

        rows = start + tl.arange(0, ROWS)
        token = rows // GROUP
        inside = token < queries_count
        row = ((begin + token) * HEADS + head) * GROUP + rows % GROUP
        depth = tl.arange(0, DIM)
        there = row.to(tl.int64)[:, None] * DIM + depth[None, :]
        from_ = (begin + token).to(tl.int64) * Q_ROW + (head * GROUP + rows % GROUP) * Q_HEAD
        queries = tl.load(q + from_[:, None] + depth[None, :], mask=inside[:, None], other=0.0)
        peak = tl.full((ROWS,), -float("inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        found = tl.zeros((ROWS, DIM), tl.float32)
        ahead = length - queries_count + 1
        last = tl.minimum((start + ROWS - 1) // GROUP, queries_count - 1)
        everyone_sees = tl.maximum(tl.minimum(start // GROUP + ahead, length), 0) // KEYS * KEYS
        someone_sees = tl.minimum(last + ahead, length)
        k_cache += head * K_HEAD
        v_cache += head * V_HEAD
        kv_indices += first
        found, total, peak = sweep(
            found, total, peak, queries, token + ahead, 0, everyone_sees, k_cache, v_cache, kv_indices, scale,
            K_PAGE, K_TOKEN, V_PAGE, V_TOKEN, PAGE, DIM, KEYS, False, INTERPRETED,
        )  # fmt: skip
        found, total, peak = sweep(
            found, total, peak, queries, token + ahead, everyone_sees, someone_sees, k_cache, v_cache, kv_indices,
            scale, K_PAGE, K_TOKEN, V_PAGE, V_TOKEN, PAGE, DIM, KEYS, True, INTERPRETED,
        )  # fmt: skip
        tl.store(lse + row, peak + tl.log2(total), mask=inside)
        found = found / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(output + there, found.to(output.dtype.element_ty), mask=inside[:, None])


def run(q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, *rest):
    *last_page_len, sm_scale = rest
    count, query_heads, dim = q.shape
    _, page, heads, _ = k_cache.shape
    group, sequences = query_heads // heads, len(qo_indptr) - 1
    rows = 128 if count * group > 64 * sequences else 64
    output = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((count, query_heads), dtype=torch.float32, device=q.device)
    attend[count * group // rows + sequences, heads](
        q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, last_page_len[0] if last_page_len else None,
        output, lse, sm_scale * math.log2(math.e), sequences,
        *q.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3],
        PAGE=page, HEADS=heads, GROUP=group, DIM=dim, SEQUENCES=triton.next_power_of_2(max(sequences, 1)),
        ROWS=rows, KEYS=KEYS, INTERPRETED=not q.is_cuda, num_warps=rows // 16, num_stages=5,
    )  # fmt: skip
    return output, lse
