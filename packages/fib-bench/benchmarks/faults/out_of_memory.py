import torch

kept = []


def run(x):
    while True:
        kept.append(torch.empty(1 << 30, device=x.device))
