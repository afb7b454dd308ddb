"""Asks for the longest request within a function of torch.compile."""

import torch


@torch.compile(dynamic=True)
def pooled(x, seq_lens):
    longest = seq_lens.max().item()
    inside = torch.arange(longest, device=x.device) < seq_lens[:, None]
    return (x[:, :longest] * inside[:, :, None]).sum(1) / seq_lens[:, None]


def run(x, seq_lens):
    return pooled(x, seq_lens)
