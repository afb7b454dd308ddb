"""Calls torch, into the caller's buffer."""

import torch


def run(x, weight, y):
    torch.mm(x, weight.t(), out=y)
