import torch


def run(x, weight, scale, y):
    torch.mm(x, weight.t(), out=y)
    y.mul_(scale.float())
