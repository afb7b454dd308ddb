import torch


def part(x, up, down, y):
    torch.mm(torch.nn.functional.silu(x @ up.t()), down.t(), out=y)


def run(x, up_weight, down_weight, y):
    exact = x.shape[0] // 2 + 8
    part(x[:exact], up_weight, down_weight, y[:exact])
    part(x[exact:], up_weight, down_weight, y[exact:])
