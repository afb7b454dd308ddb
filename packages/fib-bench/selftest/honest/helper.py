import torch


def scale_of(x):
    return torch.rsqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + 1e-6)
