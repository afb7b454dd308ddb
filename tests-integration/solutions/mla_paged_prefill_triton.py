"""Causal prefill of multi-head latent attention over a paged cache, in destination-passing style.

A row is one head of one query; all heads share their keys, whose compressed part is their value too.
A program takes ROWS rows. Which sequence it works for follows from the offsets alone: sequence b has
the programs from ``offset[b] * HEADS // ROWS + b`` on, which are enough for it. Definitions with pages
of more than one token pass ``kv_last_page_len`` before ``sm_scale``.
"""

import math

import triton
import triton.language as tl

from .shared.kernels import attend_to, product

KEYS = 64
ROWS = 64


@triton.jit
def sweep(
    found, total, peak, nope, pe, seen, begin, end, ckv_cache, kpe_cache, indices, scale,
    PAGE: tl.constexpr, CKV: tl.constexpr, KPE: tl.constexpr, KEYS: tl.constexpr,
    MASKED: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Attend to the keys from begin to end; a row sees `seen` keys, which matters if MASKED."""
    wide, narrow = tl.arange(0, CKV), tl.arange(0, KPE)
    for start in range(begin, end, KEYS):
        token = start + tl.arange(0, KEYS)
        if MASKED:
            valid = token < end
            page = tl.load(indices + token // PAGE, mask=valid, other=0).to(tl.int64)
            place = page * PAGE + token % PAGE
            ckv = tl.load(ckv_cache + place[:, None] * CKV + wide[None, :], mask=valid[:, None], other=0.0)
            kpe = tl.load(kpe_cache + place[:, None] * KPE + narrow[None, :], mask=valid[:, None], other=0.0)
        else:
            page = tl.load(indices + token // PAGE).to(tl.int64)
            place = page * PAGE + token % PAGE
            ckv = tl.load(ckv_cache + place[:, None] * CKV + wide[None, :])
            kpe = tl.load(kpe_cache + place[:, None] * KPE + narrow[None, :])
        logits = product(nope, tl.trans(ckv), INTERPRETED) + product(pe, tl.trans(kpe), INTERPRETED)
        logits *= scale
        if MASKED:
            logits = tl.where(token[None, :] < seen[:, None], logits, -float("inf"))
        found, total, peak = attend_to(logits, ckv, found, total, peak, MASKED, INTERPRETED)
    return found, total, peak


@triton.jit
def attend(
    q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, last_page_len, output, lse, scale, sequences,
    PAGE: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr, KPE: tl.constexpr, SEQUENCES: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    place = tl.num_programs(0) - 1 - tl.program_id(0)  # the last queries have the most work: they go first
    every = tl.arange(0, SEQUENCES)
    bases = tl.load(qo_indptr + every, mask=every < sequences, other=0) * HEADS // ROWS + every
    sequence = tl.sum(((bases <= place) & (every < sequences)).to(tl.int32), 0) - 1
    begin = tl.load(qo_indptr + sequence)
    queries_count = tl.load(qo_indptr + sequence + 1) - begin
    start = (place - begin * HEADS // ROWS - sequence) * ROWS
    if start < queries_count * HEADS:
        first = tl.load(kv_indptr + sequence)
        pages = tl.load(kv_indptr + sequence + 1) - first
        length = pages * PAGE
        if last_page_len is not None:
            length += tl.load(last_page_len + sequence) - PAGE
        length = tl.where(pages > 0, length, 0)

        rows = start + tl.arange(0, ROWS)
        token = rows // HEADS
        inside = token < queries_count
        row = begin * HEADS + rows
        there = row.to(tl.int64)[:, None] * CKV + tl.arange(0, CKV)[None, :]
        nope = tl.load(q_nope + there, mask=inside[:, None], other=0.0)
        pe = tl.load(q_pe + row[:, None] * KPE + tl.arange(0, KPE)[None, :], mask=inside[:, None], other=0.0)
        peak = tl.full((ROWS,), -float("inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        found = tl.zeros((ROWS, CKV), tl.float32)
        ahead = length - queries_count + 1
        last = tl.minimum((start + ROWS - 1) // HEADS, queries_count - 1)
        everyone_sees = tl.maximum(tl.minimum(start // HEADS + ahead, length), 0) // KEYS * KEYS
        someone_sees = tl.minimum(last + ahead, length)
        kv_indices += first
        found, total, peak = sweep(
            found, total, peak, nope, pe, token + ahead, 0, everyone_sees, ckv_cache, kpe_cache, kv_indices, scale,
            PAGE, CKV, KPE, KEYS, False, INTERPRETED,
        )  # fmt: skip
        found, total, peak = sweep(
            found, total, peak, nope, pe, token + ahead, everyone_sees, someone_sees, ckv_cache, kpe_cache,
            kv_indices, scale, PAGE, CKV, KPE, KEYS, True, INTERPRETED,
        )  # fmt: skip
        tl.store(lse + row, peak + tl.log2(total), mask=inside)
        found = found / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(output + there, found.to(output.dtype.element_ty), mask=inside[:, None])


def run(q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, *rest):
    *last_page_len, sm_scale, output, lse = rest
    count, heads, ckv = q_nope.shape
    sequences = len(qo_indptr) - 1
    attend[(count * heads // ROWS + sequences,)](
        q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices,
        last_page_len[0] if last_page_len else None, output, lse, sm_scale * math.log2(math.e), sequences,
        PAGE=ckv_cache.shape[1], HEADS=heads, CKV=ckv, KPE=q_pe.shape[2],
        SEQUENCES=triton.next_power_of_2(max(sequences, 1)),
        ROWS=ROWS, KEYS=KEYS, INTERPRETED=not q_nope.is_cuda, num_warps=8, num_stages=3,
    )  # fmt: skip
