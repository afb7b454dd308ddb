# class: torch.library.Library with own schema, implementations for two backends
import torch
import triton
import triton.language as tl

lib = torch.library.Library("serving_kernels", "FRAGMENT")
lib.define("rmsnorm_out(Tensor x, Tensor weight, Tensor(a!) out, float eps) -> ()")


@triton.jit
def kernel(x, w, out, n: tl.constexpr, eps):
    row = tl.program_id(0)
    i = tl.arange(0, n)
    v = tl.load(x + row * n + i).to(tl.float32)
    r = tl.math.rsqrt(tl.sum(v * v) / n + eps)
    tl.store(out + row * n + i, (v * r).to(tl.bfloat16) * tl.load(w + i))


def _cuda(x, weight, out, eps):
    kernel[(x.shape[0],)](x, weight, out, x.shape[1], eps, num_warps=8)


def _cpu(x, weight, out, eps):
    f = x.float()
    torch.mul((f * torch.rsqrt(f.square().mean(-1, keepdim=True) + eps)).to(x.dtype), weight, out=out)


lib.impl("rmsnorm_out", _cuda, "CUDA")
lib.impl("rmsnorm_out", _cpu, "CPU")
lib.impl("rmsnorm_out", lambda x, weight, out, eps: None, "Meta")


def run(x, weight, y):
    if x.numel():
        torch.ops.serving_kernels.rmsnorm_out(x, weight, y, 1e-6)
