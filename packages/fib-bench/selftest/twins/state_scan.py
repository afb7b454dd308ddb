"""Triton: one program goes over all tokens."""

import triton
import triton.language as tl


@triton.jit
def kernel(gate, x, y, tokens, width, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    state = tl.zeros((BLOCK,), tl.float32)
    for token in range(0, tokens):
        place = token * width + column
        inside = column < width
        decay = tl.load(gate + place, mask=inside, other=0.0)
        state = state / (1.0 + tl.exp(-decay)) + tl.load(x + place, mask=inside, other=0.0)
        tl.store(y + place, state, mask=inside)


def run(gate, x, y):
    tokens, width = x.shape
    kernel[(triton.cdiv(width, 32),)](gate, x, y, tokens, width, BLOCK=32, num_warps=1)
