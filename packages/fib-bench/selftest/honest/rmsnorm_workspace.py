"""A workspace is kept between calls."""

import torch

workspace = {}


def run(x, weight):
    key = x.shape, x.device
    squares = workspace.setdefault(key, torch.empty_like(x))
    torch.square(x, out=squares)
    return x * torch.rsqrt(squares.mean(-1, keepdim=True) + 1e-6) * weight
