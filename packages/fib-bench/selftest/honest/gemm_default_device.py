"""Sets torch's default device, and leaves it set."""

import torch


def run(x, weight):
    torch.set_default_device(x.device)
    y = torch.empty(len(x), len(weight))
    return torch.mm(x, weight.t(), out=y)
