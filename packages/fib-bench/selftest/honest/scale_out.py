import torch


def run(x, y):
    torch.mul(x, 2, out=y)
