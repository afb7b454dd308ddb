import math

import torch


@torch.no_grad()
def run(q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, sm_scale):
    """Causal attention, one sequence at a time, in float32; lse in base 2."""
    group = q.shape[1] // k_cache.shape[2]
    output = torch.zeros_like(q)
    lse = torch.full(q.shape[:2], -math.inf, dtype=torch.float32, device=q.device)
    queries, pages = qo_indptr.tolist(), kv_indptr.tolist()
    for i in range(len(queries) - 1):
        rows = slice(queries[i], queries[i + 1])
        chosen = kv_indices[pages[i] : pages[i + 1]].long()
        if rows.start == rows.stop or not len(chosen):
            continue
        keys = k_cache[chosen].flatten(0, 1).float().repeat_interleave(group, dim=1)
        values = v_cache[chosen].flatten(0, 1).float().repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[rows].float(), keys) * sm_scale
        last = len(keys) - (rows.stop - rows.start) + torch.arange(rows.stop - rows.start, device=q.device)
        scores.masked_fill_(torch.arange(len(keys), device=q.device) > last[:, None], -math.inf)
        lse[rows] = (torch.logsumexp(scores, -1) / math.log(2)).T
        output[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(q.dtype)
    return output, lse
