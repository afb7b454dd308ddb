"""Sorts the probabilities in every call, keeps the first k of each row, and draws by exponential noise."""

import torch


def run(probs, top_k):
    ranked, places = probs.sort(dim=-1, descending=True)
    ranks = torch.arange(probs.shape[1], device=probs.device)
    kept = ranked.masked_fill(ranks[None, :] >= top_k[:, None], 0.0)
    drawn = (kept / torch.empty_like(kept).exponential_()).argmax(-1, keepdim=True)
    return places.gather(1, drawn)[:, 0]
