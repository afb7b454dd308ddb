"""Triton: takes the largest value eight times."""

import triton
import triton.language as tl


@triton.jit
def kernel(x, values, places, COLUMNS: tl.constexpr, KEPT: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, COLUMNS)
    left = tl.load(x + row * COLUMNS + column)
    for turn in tl.static_range(KEPT):
        place = tl.argmax(left, axis=0)
        tl.store(values + row * KEPT + turn, tl.max(left, axis=0))
        tl.store(places + row * KEPT + turn, place.to(tl.int64))
        left = tl.where(column == place, -float("inf"), left)


def run(x, values, places):
    kernel[(len(x),)](x, values, places, COLUMNS=x.shape[1], KEPT=8, num_warps=1)
