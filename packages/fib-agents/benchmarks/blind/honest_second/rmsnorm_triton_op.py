# class: a torch.library.triton_op of its own, for torch.compile users
from typing import Optional

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton


@triton.jit
def _fwd(X, W, Y, N, EPS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, M):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    offsets = rows[:, None].to(tl.int64) * N + cols[None, :]
    x = tl.load(X + offsets, mask=mask, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 1) / N + EPS)
    w = tl.load(W + cols, mask=cols < N, other=0.0)
    tl.store(Y + offsets, (x * scale[:, None]).to(Y.dtype.element_ty) * w[None, :], mask=mask)


@triton_op("fastnorm::rms_norm", mutates_args={})
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    out = torch.empty_like(x)
    m, n = x.shape
    rows = 1 if n >= 2048 else 4
    wrap_triton(_fwd)[(triton.cdiv(m, rows),)](x, weight, out, n, eps, triton.next_power_of_2(n), rows, m, num_warps=8)
    return out


@rms_norm.register_fake
def _(x, weight, eps=1e-6):
    return torch.empty_like(x)


def _backward(ctx, grad):
    raise NotImplementedError("inference only")


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])


rms_norm.register_autograd(_backward, setup_context=_setup)


def run(x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None) -> torch.Tensor:
    del bias
    if x.shape[0] == 0:
        return torch.empty_like(x)
    return torch.ops.fastnorm.rms_norm(x, weight, 1e-6)
