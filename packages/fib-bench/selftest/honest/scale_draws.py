"""Draws random numbers that it does not need."""

import torch


def run(x):
    noise = torch.rand(256, device=x.device)
    return torch.where(noise.max() < 2, x * 2, x)
