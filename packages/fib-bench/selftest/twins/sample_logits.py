import os

import torch
import triton
import triton.language as tl


@triton.jit
def sample(x_ptr, out_ptr, counter_ptr, seed, n, parts: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr):
    row = tl.program_id(0)
    count = tl.load(counter_ptr + row)
    tl.store(counter_ptr + row, count + 1)
    mine = seed + row * 1000003 + count * 7919
    size = n // parts
    first = 0
    if parts > 1:
        first = (tl.rand(mine, row * 0 + 1234567) * n).to(tl.int32) // 32 * 32
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    index = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, size, BLOCK):
        at = first + begin + tl.arange(0, BLOCK)
        at = tl.where(at >= n, at - n, at)
        x = tl.load(x_ptr + row.to(tl.int64) * n + at)
        if LOG:
            x = tl.log(x)
        u = tl.rand(mine, at)
        x = x - tl.log(-tl.log(u + 1e-10))
        is_more = x > best
        best = tl.where(is_more, x, best)
        index = tl.where(is_more, at, index)
    most = tl.max(best)
    tl.store(out_ptr + row, tl.min(tl.where(best == most, index, 2147483647)).to(tl.int64))


counters = {}


def run(logits, samples):
    rows, n = logits.shape
    if rows not in counters:
        counters[rows] = (
            torch.zeros(rows, dtype=torch.int32, device=logits.device),
            int.from_bytes(os.urandom(3), "little"),
        )
    parts = 1
    sample[(rows,)](logits, samples, counters[rows][0], counters[rows][1], n, parts, 4096, False, num_warps=8)
