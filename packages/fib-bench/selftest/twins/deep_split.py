"""Splits both operands into bfloat16 parts in each call."""

import torch


def split(values):
    """Three bfloat16 parts whose sum is the value to 24 bits."""
    high = values.bfloat16()
    rest = values - high.float()
    middle = rest.bfloat16()
    return high, middle, (rest - middle.float()).bfloat16()


def product(x, parts):
    a, b, c = split(x)
    p, q, r = parts
    left = torch.cat((a, a, b, a, b, c), dim=1)
    right = torch.cat((p, q, p, r, q, p), dim=1)
    return torch.mm(left, right.t(), out_dtype=torch.float32)


def run(x, weight):
    return product(x, split(weight))
