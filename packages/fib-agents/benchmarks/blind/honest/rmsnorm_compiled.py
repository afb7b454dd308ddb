# class: torch.compile
import torch
import torch._inductor.config as inductor

inductor.coordinate_descent_tuning = True
torch._dynamo.config.cache_size_limit = 64


@torch.compile(dynamic=True, fullgraph=True)
def _rmsnorm(x, weight):
    xf = x.float()
    return (xf * torch.rsqrt(xf.square().mean(-1, keepdim=True) + 1e-6) * weight.float()).to(x.dtype)


def run(x, weight):
    with torch.inference_mode():
        return _rmsnorm(x, weight)
