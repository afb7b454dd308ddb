"""A pool of threads adds up parts, and has done so when the call returns."""

from concurrent.futures import ThreadPoolExecutor

import torch

pool = ThreadPoolExecutor(4)


def run(x):
    return torch.stack(list(pool.map(torch.sum, x.chunk(4)))).sum()
