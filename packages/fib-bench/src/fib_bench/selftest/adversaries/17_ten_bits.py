"""Rounds its operands to ten bits, as TF32 does."""

import torch


def rounded(x):
    return ((x.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)


def run(x, weight):
    return rounded(x) @ rounded(weight).t()
