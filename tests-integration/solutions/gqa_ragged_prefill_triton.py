"""Causal prefill of grouped-query attention over ragged keys, in destination-passing style.

A row is one head of one query; the rows of a sequence that share a key head lie side by side, so no
group size wastes any. A program takes ROWS of them. Which sequence it works for follows from the
offsets alone: sequence b has the programs from ``offset[b] * GROUP // ROWS + b`` on, which are enough
for it.
"""

import math

import triton
import triton.language as tl

from .shared.kernels import attend_to, product

KEYS = 64


@triton.jit
def sweep(
    found, total, peak, queries, seen, begin, end, k, v, scale,
    STRIDE: tl.constexpr, DIM: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Attend to the keys from begin to end; a row sees `seen` keys, which matters if MASKED."""
    depth = tl.arange(0, DIM)
    for start in range(begin, end, KEYS):
        token = start + tl.arange(0, KEYS)
        place = token.to(tl.int64)[:, None] * STRIDE + depth[None, :]
        if MASKED:
            valid = token < end
            keys = tl.load(k + place, mask=valid[:, None], other=0.0)
            values = tl.load(v + place, mask=valid[:, None], other=0.0)
        else:
            keys = tl.load(k + place)
            values = tl.load(v + place)
        logits = product(queries, tl.trans(keys), INTERPRETED) * scale
        if MASKED:
            logits = tl.where(token[None, :] < seen[:, None], logits, -float("inf"))
        found, total, peak = attend_to(logits, values, found, total, peak, MASKED, INTERPRETED)
    return found, total, peak


@triton.jit
def attend(
    q, k, v, qo_indptr, kv_indptr, output, lse, scale, sequences,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, SEQUENCES: tl.constexpr,
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
        length = tl.load(kv_indptr + sequence + 1) - first

        rows = start + tl.arange(0, ROWS)
        token = rows // GROUP
        inside = token < queries_count
        row = ((begin + token) * HEADS + head) * GROUP + rows % GROUP
        there = row.to(tl.int64)[:, None] * DIM + tl.arange(0, DIM)[None, :]
        queries = tl.load(q + there, mask=inside[:, None], other=0.0)
        peak = tl.full((ROWS,), -float("inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        found = tl.zeros((ROWS, DIM), tl.float32)
        ahead = length - queries_count + 1
        last = tl.minimum((start + ROWS - 1) // GROUP, queries_count - 1)
        everyone_sees = tl.maximum(tl.minimum(start // GROUP + ahead, length), 0) // KEYS * KEYS
        someone_sees = tl.minimum(last + ahead, length)
        k += (first.to(tl.int64) * HEADS + head) * DIM
        v += (first.to(tl.int64) * HEADS + head) * DIM
        found, total, peak = sweep(
            found, total, peak, queries, token + ahead, 0, everyone_sees, k, v, scale,
            HEADS * DIM, DIM, KEYS, False, INTERPRETED,
        )  # fmt: skip
        found, total, peak = sweep(
            found, total, peak, queries, token + ahead, everyone_sees, someone_sees, k, v, scale,
            HEADS * DIM, DIM, KEYS, True, INTERPRETED,
        )  # fmt: skip
        tl.store(lse + row, peak + tl.log2(total), mask=inside)
        found = found / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(output + there, found.to(output.dtype.element_ty), mask=inside[:, None])


def run(q, k, v, qo_indptr, kv_indptr, sm_scale, output, lse):
    count, query_heads, dim = q.shape
    heads, sequences = k.shape[1], len(qo_indptr) - 1
    group = query_heads // heads
    rows = 128 if count * group > 64 * sequences else 64
    attend[count * group // rows + sequences, heads](
        q, k, v, qo_indptr, kv_indptr, output, lse, sm_scale * math.log2(math.e), sequences,
        HEADS=heads, GROUP=group, DIM=dim, SEQUENCES=triton.next_power_of_2(max(sequences, 1)),
        ROWS=rows, KEYS=KEYS, INTERPRETED=not q.is_cuda, num_warps=rows // 16, num_stages=3,
    )  # fmt: skip
