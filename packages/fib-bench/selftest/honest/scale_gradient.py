import torch

factor = torch.nn.Parameter(torch.tensor(2.0))


def run(x):
    return x * factor.to(x.device)
