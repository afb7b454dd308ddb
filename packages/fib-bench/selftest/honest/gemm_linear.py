import torch


def run(x, weight):
    return torch.nn.functional.linear(x, weight)
