"""Calls torch's product with a bias of zeros, which takes cuBLASLt and its workspace."""

import torch

zeros = {}


def run(x, weight):
    key = len(weight), x.device
    if key not in zeros:
        zeros[key] = torch.zeros(len(weight), dtype=x.dtype, device=x.device)
    return torch.addmm(zeros[key], x, weight.t())
