"""Rotary embedding of a part of each head, in destination-passing style. One launch rotates queries and keys."""

import triton
import triton.language as tl

SOME = 8
"""The heads of one program."""


@triton.jit
def rotate(x, y, head, heads, token, cos, sin, DIM: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr):
    inside = (head < heads)[:, None]
    columns = tl.arange(0, HALF)[None, :]
    base = (token * heads + head)[:, None] * DIM
    low = tl.load(x + base + columns, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(x + base + HALF + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + base + columns, (low * cos - high * sin).to(y.dtype.element_ty), mask=inside)
    tl.store(y + base + HALF + columns, (high * cos + low * sin).to(y.dtype.element_ty), mask=inside)
    if DIM > 2 * HALF:
        further = 2 * HALF + tl.arange(0, REST)[None, :]
        is_there = inside & (further < DIM)
        tl.store(y + base + further, tl.load(x + base + further, mask=is_there), mask=is_there)


@triton.jit
def rotate_both(
    q, k, cos_sin, positions, q_out, k_out, query_heads, key_heads, length,
    DIM: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + token)
    position = tl.where(position < 0, position + length, position)
    columns = tl.arange(0, HALF)
    cos = tl.load(cos_sin + position * 2 * HALF + columns)[None, :]
    sin = tl.load(cos_sin + position * 2 * HALF + HALF + columns)[None, :]
    of_queries = tl.cdiv(query_heads, SOME)
    if part < of_queries:
        rotate(q, q_out, part * SOME + tl.arange(0, SOME), query_heads, token, cos, sin, DIM, HALF, REST)
    else:
        head = (part - of_queries) * SOME + tl.arange(0, SOME)
        rotate(k, k_out, head, key_heads, token, cos, sin, DIM, HALF, REST)


def run(q, k, cos_sin_cache, positions, q_out, k_out):
    tokens, query_heads, dim = q.shape
    key_heads, (length, rotated) = k.shape[1], cos_sin_cache.shape
    rotate_both[tokens, triton.cdiv(query_heads, SOME) + triton.cdiv(key_heads, SOME)](
        q, k, cos_sin_cache, positions, q_out, k_out, query_heads, key_heads, length,
        DIM=dim, HALF=rotated // 2, REST=triton.next_power_of_2(max(dim - rotated, 1)), SOME=SOME, num_warps=2,
    )  # fmt: skip
