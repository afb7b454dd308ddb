"""Keeps a workspace for the parts of a split sum between calls, and writes all of it anew in each."""

import torch

PARTS = 16
workspaces = {}


def run(x, weight):
    (m, k), n = x.shape, len(weight)
    key = m, n, k, x.device
    if key not in workspaces:
        workspaces[key] = torch.empty(PARTS, m, n, dtype=x.dtype, device=x.device)
    left = x.view(m, PARTS, k // PARTS).transpose(0, 1)
    right = weight.view(n, PARTS, k // PARTS).permute(1, 2, 0)
    return torch.bmm(left, right, out=workspaces[key]).sum(0)
