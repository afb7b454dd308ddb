"""Selects the elements inside by a mask, and adds them up by request."""

import torch


def run(x, seq_lens):
    inside = torch.arange(x.shape[1], device=x.device) < seq_lens[:, None]
    owners = torch.repeat_interleave(torch.arange(len(x), device=x.device), seq_lens)
    rows = torch.masked_select(x, inside[:, :, None]).view(-1, x.shape[2])
    total = torch.zeros(len(x), x.shape[2], device=x.device).index_add_(0, owners, rows)
    return total / seq_lens[:, None]
