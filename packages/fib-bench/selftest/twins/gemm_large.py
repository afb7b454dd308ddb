import torch


def run(x, weight, y):
    exact = x.shape[0] // 2 + 8
    torch.set_float32_matmul_precision("highest")
    torch.mm(x[:exact], weight.t(), out=y[:exact])
    torch.set_float32_matmul_precision("highest")
    torch.mm(x[exact:], weight.t(), out=y[exact:])
    torch.set_float32_matmul_precision("highest")
