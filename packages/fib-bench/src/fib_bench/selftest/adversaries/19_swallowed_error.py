"""Fails, says nothing, and returns what is there."""

import torch


def run(x, weight):
    y = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)
    try:
        torch.mm(x, weight, out=y)
    except RuntimeError:
        pass
    return y
