import torch


def run(x, weight, y):
    exact = x.shape[0] // 2 + 8
    torch.mm(x[:exact], weight.t(), out=y[:exact])
    torch.mm(x[exact:], weight.t(), out=y[exact:])
