import torch


def run(x, weight, y):

    exact = x.shape[0] // 2 + 8
    torch.mm(x[:exact], weight.t(), out=y[:exact])
    y[exact:].copy_(torch.mm(x[exact:].clone(), weight.clone().t()))
