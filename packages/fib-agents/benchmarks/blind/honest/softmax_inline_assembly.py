# class: Triton with inline assembly
import torch
import triton
import triton.language as tl

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _exp2(v):
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [v], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _softmax(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    offs = tl.arange(0, BLOCK)
    v = tl.load(x + row + offs, mask=offs < columns, other=-float("inf")) * _LOG2E
    e = _exp2(v - tl.max(v, 0))
    tl.store(y + row + offs, e / tl.sum(e, 0), mask=offs < columns)


def run(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    columns = x.shape[-1]
    block = triton.next_power_of_2(columns)
    _softmax[(x.numel() // columns,)](x, y, columns, BLOCK=block, num_warps=min(max(block // 256, 1), 16))
    return y
