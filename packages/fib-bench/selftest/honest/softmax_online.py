"""Goes over blocks of columns with a running maximum, and so adds in another order."""

import torch


def run(x):
    largest = torch.full((len(x), 1), -torch.inf, device=x.device)
    total = torch.zeros_like(largest)
    for block in x.split(64, dim=1):
        larger = torch.maximum(largest, block.amax(1, keepdim=True))
        total = total * (largest - larger).exp() + (block - larger).exp().sum(1, keepdim=True)
        largest = larger
    return (x - largest).exp() / total
