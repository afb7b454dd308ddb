"""Adds up one after the other, the least exact order of all."""

import torch


def run(x, weight):
    y = torch.zeros(len(x), len(weight), dtype=x.dtype, device=x.device)
    for a, b in zip(x.t().split(4), weight.t().split(4), strict=True):
        y.addmm_(a.t(), b)
    return y
