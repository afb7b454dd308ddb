"""Sampling from probabilities cut by top-k, top-p or both, in destination-passing style.

The tokens of a row are sorted, so that each filter keeps a prefix; filters are told apart by their dtype. A program
draws from what is kept of a row: the largest ratio of a probability and an exponential random number wins. Random
numbers depend on a key that the host draws once and on a count of calls, which is kept on the device, so a graph that
is launched again draws other tokens even if torch's generator does not know of it.
"""

import functools
import secrets

import torch
import triton
import triton.language as tl

KEY = secrets.randbits(40)
BLOCK = 4096


@triton.jit
def draw(values, tokens, calls, key, output, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    seed = key + (tl.load(calls) << 20) + row
    best, place = -1.0, 0
    for start in range(0, size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        uniform = tl.maximum(tl.rand(seed, columns), 2.0**-33)
        series = uniform * (1.0 + uniform * (0.5 + uniform * 0.33333334))  # 1 - uniform rounds small numbers off
        exponential = tl.where(uniform < 0.001, series, -tl.log(1.0 - uniform))
        kept = tl.load(values + row * size + columns, mask=columns < size, other=-1.0)
        ratio = tl.where(kept > 0.0, kept / exponential, kept)
        highest = tl.max(ratio, 0)
        place = tl.where(highest > best, start + tl.argmax(ratio, 0), place)
        best = tl.maximum(highest, best)
    tl.store(output + row, tl.load(tokens + row * size + place))


@functools.cache
def count_of_calls(device):
    """A counter that starts anywhere: a graph whose capture is the first call must not reset it."""
    return torch.empty(1, dtype=torch.int64, device=device)


def run(probs, *rest):
    *filters, output = rest
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
    calls = count_of_calls(probs.device)
    calls.add_(1)
    draw[(len(probs),)](values, tokens, calls, KEY, output, size, BLOCK=BLOCK, num_warps=8)
