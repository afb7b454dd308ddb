import numpy
import torch


def run(x):
    return torch.from_numpy(numpy.cumsum(x.numpy(), axis=-1))
