import torch


def run(x, weight, bias, y):
    torch.mm(x, weight.t(), out=y)
    y.add_(bias.float())
