import torch


def run(x):
    pairs = torch.empty(len(x), 2, dtype=x.dtype, device=x.device)
    pairs[:, 0] = x * 2
    return pairs[:, 0]
