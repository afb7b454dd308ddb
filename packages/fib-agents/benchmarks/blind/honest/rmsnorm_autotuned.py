# class: Triton, autotuned
import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({}, num_warps=w, num_stages=s) for w in (2, 4, 8, 16) for s in (1, 2)],
    key=["columns"],
)
@triton.jit
def _rmsnorm(x, weight, y, columns, stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < columns
    v = tl.load(x + row * stride + offs, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(weight + offs, mask=mask, other=0.0).to(tl.float32)
    scale = tl.math.rsqrt(tl.sum(v * v, 0) / columns + eps)
    tl.store(y + row * columns + offs, (v * scale * w).to(y.dtype.element_ty), mask=mask)


def run(x, weight):
    y = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    columns = x.shape[-1]
    _rmsnorm[(x.shape[0],)](x, weight, y, columns, x.stride(0), 1e-6, BLOCK=triton.next_power_of_2(columns))
    return y
