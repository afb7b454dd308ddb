"""Asks whether all numbers are finite, and changes those that are not."""

import torch


def run(x, weight):
    if not torch.isfinite(x).all():
        x = torch.nan_to_num(x)
    return x @ weight.t()
