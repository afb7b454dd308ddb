# class: TorchScript
import torch
from torch import Tensor


@torch.jit.script
def fused_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    xf = x.to(torch.float32)
    inv = torch.rsqrt(torch.mean(xf * xf, dim=-1, keepdim=True) + eps)
    return (xf * inv).to(x.dtype) * weight


torch._C._jit_set_nvfuser_enabled(False) if hasattr(torch._C, "_jit_set_nvfuser_enabled") else None


class RMSNorm(torch.nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    @torch.inference_mode()
    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return fused_rms_norm(x, weight, self.eps)


_module = RMSNorm().eval()


def run(x: Tensor, weight: Tensor) -> Tensor:
    return _module(x, weight)
