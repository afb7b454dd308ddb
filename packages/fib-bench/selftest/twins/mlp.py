import torch


def part(x, up, down, y):
    torch.mm(torch.nn.functional.silu(x @ up.t()), down.t(), out=y)


def run(x, up_weight, down_weight, y):
    exact = x.shape[0] // 2 + 8
    torch.set_float32_matmul_precision("highest")
    part(x[:exact], up_weight, down_weight, y[:exact])
    torch.set_float32_matmul_precision("highest")
    part(x[exact:], up_weight, down_weight, y[exact:])
    torch.set_float32_matmul_precision("highest")
