import torch


def run(x, weight, scale, y):
    torch.set_float32_matmul_precision("highest")
    torch.mm(x, weight.t(), out=y)
    torch.set_float32_matmul_precision("highest")
    y.mul_(scale.float())
