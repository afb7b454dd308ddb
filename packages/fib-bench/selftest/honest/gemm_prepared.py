"""`setup` allocates by shapes, which is what it is for."""

import torch


def setup(x, weight):
    return {"y": torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)}


def run(x, weight, *, y):
    return torch.mm(x, weight.t(), out=y)
