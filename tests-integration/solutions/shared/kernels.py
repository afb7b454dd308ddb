"""Functions of several kernels: a source of each solution that imports it."""

import triton
import triton.language as tl


@triton.jit
def product(a, b, INTERPRETED: tl.constexpr):
    if INTERPRETED:  # the interpreter takes the bits of bfloat16 for integers, and truncates to bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a.to(b.dtype), b)


@triton.jit
def attend_to(logits, values, found, total, peak, MASKED: tl.constexpr, INTERPRETED: tl.constexpr):
    """Add some keys to a softmax that has `peak` and `total` so far; where MASKED, a row may have no key yet."""
    higher = tl.maximum(peak, tl.max(logits, 1))
    shift = higher
    if MASKED:
        shift = tl.where(higher == -float("inf"), 0.0, higher)
    weights = tl.exp2(logits - shift[:, None])
    fade = tl.exp2(peak - shift)
    found = found * fade[:, None] + product(weights, values, INTERPRETED)
    return found, total * fade + tl.sum(weights, 1), higher


@triton.jit
def join(
    parts, parts_lse, output, lse,
    DIM: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr, ALL: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    every = tl.arange(0, ALL)
    heights = tl.load(parts_lse + row * SPLITS + every, mask=every < SPLITS, other=-float("inf"))
    peak = tl.max(heights, 0)
    shift = tl.where(peak == -float("inf"), 0.0, peak)
    total = tl.sum(tl.exp2(heights - shift), 0)
    found = tl.zeros((COLUMNS,), tl.float32)
    for begin in range(0, SPLITS, SOME):
        split = begin + tl.arange(0, SOME)
        height = tl.load(parts_lse + row * SPLITS + split, mask=split < SPLITS, other=-float("inf"))
        there = parts + (row * SPLITS + split)[:, None] * DIM + columns[None, :]
        part = tl.load(there, mask=(split < SPLITS)[:, None], other=0.0)
        found += tl.sum(part * tl.exp2(height - shift)[:, None], 0)
    found = found / tl.where(total > 0, total, 1.0)
    tl.store(output + row * DIM + columns, found.to(output.dtype.element_ty))
    if tl.program_id(1) == 0:
        tl.store(lse + row, shift + tl.log2(total))


@triton.jit
def softplus(x):
    exponential = tl.exp(tl.minimum(x, 20.0))
    shifted = 1.0 + exponential
    is_tiny = shifted == 1.0
    ratio = exponential / tl.where(is_tiny, 1.0, shifted - 1.0)  # corrects the rounding of 1 + exponential
    return tl.where(x > 20.0, x, tl.where(is_tiny, exponential, tl.log(shifted) * ratio))
