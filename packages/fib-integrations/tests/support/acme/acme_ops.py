"""A library whose function an adapter of another package converts."""

import torch


def silu_and_mul(x, out=None, *, enable_pdl=None):
    """SiLU of the first half of each row, times the second."""
    first, second = x.chunk(2, dim=-1)
    result = torch.nn.functional.silu(first) * second
    return result if out is None else out.copy_(result)
