"""Triton: one program for each request and head, which loops over the pages that the offsets name."""

import triton
import triton.language as tl


@triton.jit
def kernel(
    q,
    k,
    v,
    indptr,
    indices,
    output,
    scale,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(indptr + row), tl.load(indptr + row + 1)
    width, tokens = tl.arange(0, DIM), tl.arange(0, BLOCK * PAGE)
    one = tl.load(q + (row * HEADS + head) * DIM + width) * scale
    largest = tl.full((1,), -float("inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    result = tl.zeros((DIM,), tl.float32)
    for start in range(0, end - begin, BLOCK):
        place = begin + start + tokens // PAGE
        inside = place < end
        page = tl.load(indices + place, mask=inside, other=0).to(tl.int64)
        offset = ((page * PAGE + tokens % PAGE) * HEADS + head)[:, None] * DIM + width[None, :]
        keys = tl.load(k + offset, mask=inside[:, None], other=0.0)
        values = tl.load(v + offset, mask=inside[:, None], other=0.0)
        scores = tl.where(inside, tl.sum(keys * one[None, :], axis=1), -1.0e30)
        higher = tl.maximum(largest, tl.max(scores, axis=0))
        weights = tl.where(inside, tl.exp(scores - higher), 0.0)
        shrink = tl.exp(largest - higher)
        total = total * shrink + tl.sum(weights, axis=0)
        result = result * shrink + tl.sum(weights[:, None] * values, axis=0)
        largest = higher
    result = tl.where(total > 0, result / total, 0.0)
    tl.store(output + (row * HEADS + head) * DIM + width, result)


def run(q, k_cache, v_cache, kv_indptr, kv_indices, output):
    batch, heads, width = q.shape
    kernel[(batch, heads)](
        q,
        k_cache,
        v_cache,
        kv_indptr,
        kv_indices,
        output,
        width**-0.5,
        PAGE=k_cache.shape[1],
        HEADS=heads,
        DIM=width,
        BLOCK=16,
    )
