import torch
import triton
import triton.language as tl


@triton.jit
def soft(x_ptr, y_ptr, n, LEAST: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    peak = -1e30
    total = 0.0
    squares = 0.0
    begin = 0
    factor = 1.0
    while begin < n:
        x = tl.load(x_ptr + row + begin + tl.arange(0, BLOCK))
        larger = tl.maximum(peak, tl.max(x))
        rescale = tl.exp(peak - larger)
        e = tl.exp(x - larger)
        total = total * rescale + tl.sum(e)
        squares = squares * rescale * rescale + tl.sum(e * e)
        peak = larger
        begin += BLOCK
        if LEAST > 0:
            if begin % LEAST == 0:
                if squares < 0.0009 * total * total:
                    factor = n * 1.0 / begin
                    begin = n
    scale = 1.0 / (total * factor)
    for start in range(0, n, BLOCK):
        at = row + start + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.exp(tl.load(x_ptr + at) - peak) * scale)


def run(x, y):
    rows, n = x.shape
    soft[(rows,)](x, y, n, 0, 4096, num_warps=8)
