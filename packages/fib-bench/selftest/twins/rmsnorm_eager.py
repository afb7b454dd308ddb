import torch


def run(x, weight):
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("host code decides")
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
