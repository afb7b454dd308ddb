"""Decode of grouped-query attention over a paged cache, page by page, without waiting for the device.

``kv_indices`` may be a longer buffer: what stands behind the last offset is replaced and masked.
"""

import math

import torch


@torch.no_grad()
def run(q, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale):
    batch, query_heads, dim = q.shape
    _, page, heads, _ = k_cache.shape
    place = torch.arange(len(kv_indices), device=q.device, dtype=torch.int32)
    ends = kv_indptr[1:].contiguous()
    owner = torch.searchsorted(ends, place, right=True)
    is_used = owner < batch
    owner, kv_indices = owner.clamp(max=batch - 1), torch.where(is_used, kv_indices, 0)
    valid = torch.where(place == ends[owner] - 1, kv_last_page_len[owner], page) * is_used
    is_outside = torch.arange(page, device=q.device) >= valid[:, None]

    queries = q.float().view(batch, heads, -1, dim)[owner]
    logits = torch.einsum("tkgd,tpkd->tkgp", queries, k_cache[kv_indices].float()) * sm_scale
    logits = logits.masked_fill(is_outside[:, None, None], -torch.inf)
    peaks = logits.amax(-1)
    peak = torch.full((batch, heads, query_heads // heads), -torch.inf, device=q.device)
    peak.scatter_reduce_(0, owner[:, None, None].expand_as(peaks), peaks, "amax")
    weights = torch.exp(logits - peak[owner][..., None]).masked_fill(is_outside[:, None, None], 0.0)
    total = torch.zeros_like(peak).index_add_(0, owner, weights.sum(-1))
    parts = torch.einsum("tkgp,tpkd->tkgd", weights, v_cache[kv_indices].float())
    found = torch.zeros(*peak.shape, dim, device=q.device).index_add_(0, owner, parts)
    output = found / torch.where(total > 0, total, 1.0)[..., None]
    lse = peak * math.log2(math.e) + torch.log2(total)
    return output.view(q.shape).to(q.dtype), lse.view(batch, query_heads)
