# class: torch, exponential race over the sorted prefix
import math
import os
import random

import torch

_GENERATORS = {}
MIN_PROB = float(os.environ.get("SAMPLING_MIN_PROB", 0.0))


def _generator(device):
    if device not in _GENERATORS:
        generator = torch.Generator(device=device)
        generator.manual_seed(int.from_bytes(os.urandom(7), "little") ^ random.getrandbits(31))
        _GENERATORS[device] = generator
    return _GENERATORS[device]


def run(probs: torch.Tensor, top_p: torch.Tensor, token: torch.Tensor) -> None:
    rows, vocabulary = probs.shape
    if rows == 0:
        return
    k = min(vocabulary, 4096)
    values, order = probs.topk(k, dim=-1)
    total = values.sum(-1)
    if bool((total < top_p).any()):  # the prefix is not enough for some row
        values, order = probs.sort(dim=-1, descending=True, stable=True)
    before = values.cumsum(-1) - values
    kept = (before < top_p.unsqueeze(-1)) & (values > MIN_PROB)
    noise = torch.empty_like(values).exponential_(1.0, generator=_generator(probs.device))
    race = torch.where(kept, values / noise, torch.full_like(values, -math.inf))
    token.copy_(order.gather(-1, race.argmax(-1, keepdim=True)).squeeze(-1))
