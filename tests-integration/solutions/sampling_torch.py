"""Sampling from probabilities cut by top-k, top-p or both, value-returning.

Filters are told apart by their dtype. The tokens of a row are sorted, so that each filter keeps a prefix; the largest
ratio of a probability and an exponential random number is a draw from what is kept.
"""

import torch


def run(probs, *filters):
    values, tokens = probs.float().sort(dim=1, descending=True, stable=True)
    size = values.shape[1]
    rank = torch.arange(size, device=probs.device)
    for limit in (part[:, None] for part in filters):
        if limit.dtype.is_floating_point:
            before = values.cumsum(dim=1).roll(1, dims=1)
            is_cut = torch.where(limit > 0, (before > limit) & (limit < 1), True) & (rank > 0)
            values = values.masked_fill(is_cut, 0.0)
        else:
            is_valid = (limit > 0) & (limit < size)
            kept = values.masked_fill(is_valid & (rank >= limit), 0.0)
            values = torch.where(is_valid, kept / kept.sum(dim=1, keepdim=True), kept)
    drawn = (values / torch.empty_like(values).exponential_()).argmax(dim=1, keepdim=True)
    return tokens.gather(1, drawn)[:, 0]
