import torch


@torch.no_grad()
def run(A, B):
    return torch.nn.functional.linear(A, B)
