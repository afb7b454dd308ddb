import torch

kept = []


def run(x):
    kept.append(torch.empty(64 << 20, dtype=torch.uint8, device=x.device))
    return x * 2
