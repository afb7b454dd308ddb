"""Adds all tokens before each token, in whole tensors."""

import torch


def run(gate, x):
    keeps, y, weight = torch.sigmoid(gate), x.clone(), torch.ones_like(x)
    for back in range(1, len(x)):
        weight[back:] *= keeps[1 : len(x) - back + 1]
        y[back:] += weight[back:] * x[:-back]
    return y
