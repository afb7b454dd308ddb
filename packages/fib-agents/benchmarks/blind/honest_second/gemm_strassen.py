# class: torch, one level of Strassen with temporaries that are kept
import functools
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def full_precision():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@functools.lru_cache(maxsize=4)
def temporaries(m, n, k, device):
    new = functools.partial(torch.empty, dtype=torch.float32, device=device)
    return new(m, k), new(n, k), [new(m, n) for _ in range(7)]


def _halves(t):
    r, c = t.shape[0] // 2, t.shape[1] // 2
    return t[:r, :c], t[:r, c:], t[r:, :c], t[r:, c:]


def run(A, B, C):
    m, k = A.shape
    n = B.shape[0]
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        stack.enter_context(full_precision())
        if m < 1024 or m % 2 or n % 2 or k % 2:
            torch.matmul(A, B.t(), out=C)
            return
        ta, tb, (p1, p2, p3, p4, p5, p6, p7) = temporaries(m // 2, n // 2, k // 2, A.device)
        a11, a12, a21, a22 = _halves(A)
        b11, b21, b12, b22 = _halves(B)  # of the transposed matrix
        c11, c12, c21, c22 = _halves(C)
        torch.matmul(torch.add(a11, a22, out=ta), torch.add(b11, b22, out=tb).t(), out=p1)
        torch.matmul(torch.add(a21, a22, out=ta), b11.t(), out=p2)
        torch.matmul(a11, torch.sub(b12, b22, out=tb).t(), out=p3)
        torch.matmul(a22, torch.sub(b21, b11, out=tb).t(), out=p4)
        torch.matmul(torch.add(a11, a12, out=ta), b22.t(), out=p5)
        torch.matmul(torch.sub(a21, a11, out=ta), torch.add(b11, b12, out=tb).t(), out=p6)
        torch.matmul(torch.sub(a12, a22, out=ta), torch.add(b21, b22, out=tb).t(), out=p7)
        c11.copy_(p1).add_(p4).sub_(p5).add_(p7)
        c12.copy_(p3).add_(p5)
        c21.copy_(p2).add_(p4)
        c22.copy_(p1).sub_(p2).add_(p3).add_(p6)
