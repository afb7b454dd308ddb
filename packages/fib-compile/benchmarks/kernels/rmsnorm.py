import torch


def run(x, weight):
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return x * scale * weight
