# class: cuBLAS through torch, full precision
import contextlib

import torch


@contextlib.contextmanager
def _ieee():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def run(A, B, C):
    with _ieee():
        torch.mm(A, B.t(), out=C)
