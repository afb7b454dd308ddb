# class: an operator of its own, for torch.compile
import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, w, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row + i, mask=i < n, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, 0) / n + 1e-6)
    tl.store(y + row + i, (v * scale).to(y.dtype.element_ty) * tl.load(w + i, mask=i < n), mask=i < n)


@torch.library.custom_op("my_kernels::rmsnorm", mutates_args=())
def rmsnorm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    _kernel[(x.shape[0],)](x, w, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


@rmsnorm.register_fake
def _(x, w):
    return torch.empty_like(x)


def run(x, weight):
    return torch.ops.my_kernels.rmsnorm(x.contiguous(), weight)
