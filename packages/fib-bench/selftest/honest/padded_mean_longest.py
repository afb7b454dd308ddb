"""Leaves out what is behind the longest request."""

import torch


def run(x, seq_lens):
    longest = seq_lens.max().item()
    inside = torch.arange(longest, device=x.device) < seq_lens[:, None]
    return (x[:, :longest] * inside[:, :, None]).sum(1) / seq_lens[:, None]
