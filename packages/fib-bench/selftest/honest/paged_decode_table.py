"""Makes a padded table of pages from lists of Python, and sends it with the lengths."""

import torch


def run(q, k_cache, v_cache, kv_indptr, kv_indices):
    ends, pages = kv_indptr.tolist(), kv_indices.tolist()
    rows = [pages[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]
    longest, size = max(map(len, rows)), k_cache.shape[1]
    table = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=q.device)
    tokens = torch.tensor([size * len(row) for row in rows], device=q.device)
    keys, values = (cache[table].flatten(1, 2) for cache in (k_cache, v_cache))
    scores = torch.einsum("bhd,bkhd->bhk", q, keys) / q.shape[-1] ** 0.5
    outside = torch.arange(longest * size, device=q.device) >= tokens[:, None]
    weights = torch.softmax(scores.masked_fill(outside[:, None, :], -torch.inf), dim=-1).nan_to_num(0.0)
    return torch.einsum("bhk,bkhd->bhd", weights, values)
