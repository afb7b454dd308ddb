"""Decodes over all pages at once, with a mask that every call derives from the offsets on the device."""

import torch


def plan(kv_indptr, kv_indices, batch, page_size):
    slots = torch.arange(len(kv_indices), dtype=kv_indptr.dtype, device=kv_indptr.device)
    owners = torch.searchsorted(kv_indptr[1:].contiguous(), slots, right=True)
    mask = owners[None, :] == torch.arange(batch, device=owners.device)[:, None]
    return kv_indices.long(), mask.repeat_interleave(page_size, dim=1)


def run(q, k_cache, v_cache, kv_indptr, kv_indices):
    pages, mask = plan(kv_indptr, kv_indices, len(q), k_cache.shape[1])
    keys, values = k_cache[pages].flatten(0, 1), v_cache[pages].flatten(0, 1)
    scores = torch.einsum("bhd,khd->bhk", q, keys) / q.shape[-1] ** 0.5
    weights = torch.softmax(scores.masked_fill(~mask[:, None, :], -torch.inf), dim=-1).nan_to_num(0.0)
    return torch.einsum("bhk,khd->bhd", weights, values)
