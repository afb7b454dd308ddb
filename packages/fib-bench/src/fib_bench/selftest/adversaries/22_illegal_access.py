"""Has the device read where nothing is, which spoils its context."""

import torch


def run(x, weight):
    y = x @ weight.t()
    return y.index_select(0, torch.full((len(x),), 1 << 40, device=x.device))
