"""Returns two views with a stride of two, the columns of one tensor."""

import torch


def run(x):
    both = torch.empty(len(x), 2, dtype=x.dtype, device=x.device)
    mean = x.mean(-1, keepdim=True)
    both[:, 0] = mean[:, 0]
    both[:, 1] = (x - mean).square().mean(-1)
    return both[:, 0], both[:, 1]
