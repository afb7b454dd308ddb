"""The computations of the stand-ins in plain torch; also the references of the definitions in tests."""

import math

import torch


def normalised(hidden_states, weight, eps):
    x = hidden_states.float()
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(hidden_states.dtype)


def normalised_sum(hidden_states, residual, weight, eps):
    x = hidden_states.float() + residual.float()
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(hidden_states.dtype)


def rotated(x, cos_sin_cache, positions):
    cos, sin = cos_sin_cache[positions].float().unsqueeze(1).chunk(2, -1)
    size = cos_sin_cache.shape[1]
    first, second = x[..., :size].float().chunk(2, -1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return torch.cat((turned.to(x.dtype), x[..., size:]), -1)


def limited(probs, top_k=None, top_p=None):
    rows = []
    for index, row in enumerate(probs.float()):
        values, order = row.sort(descending=True)
        if top_k is not None:
            values = torch.where(torch.arange(len(values)) < int(top_k[index]), values, 0.0)
            values = values / values.sum()
        if top_p is not None:
            values = torch.where(values.cumsum(0) - values < float(top_p[index]), values, 0.0)
        rows.append(order[torch.multinomial(values, 1)])
    return torch.cat(rows)


def attended(q, k, v, sm_scale, causal):
    group = q.shape[1] // k.shape[1]
    keys, values = (x.float().repeat_interleave(group, 1) for x in (k, v))
    logits = torch.einsum("qhd,khd->hqk", q.float(), keys) * sm_scale
    if causal:
        last = torch.arange(len(q))[:, None] + len(k) - len(q)
        logits = logits.masked_fill(torch.arange(len(k))[None] > last, -math.inf)
    output = torch.einsum("hqk,khd->qhd", logits.softmax(-1), values)
    return output.to(q.dtype), (logits.logsumexp(-1) / math.log(2)).T


def of_pages(cache, indices, last_page_len):
    tokens = cache[indices.long()].flatten(0, 1)
    return tokens[: (len(indices) - 1) * cache.shape[1] + int(last_page_len)]


def attended_by_request(q, qo_indptr, kv_indptr, attend, size):
    output = torch.zeros(*q.shape[:2], size, dtype=q.dtype)
    lse = torch.full(q.shape[:2], -math.inf)
    for request in range(len(kv_indptr) - 1):
        mine = slice(int(qo_indptr[request]), int(qo_indptr[request + 1]))
        keys = slice(int(kv_indptr[request]), int(kv_indptr[request + 1]))
        if mine.start < mine.stop and keys.start < keys.stop:
            output[mine], lse[mine] = attend(q[mine], keys, request, mine)
    return output, lse


def attended_in_pages(q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, sm_scale, causal):
    def attend(rows, pages, request, mine):
        k, v = (of_pages(cache, kv_indices[pages], kv_last_page_len[request]) for cache in (k_cache, v_cache))
        return attended(rows, k, v, sm_scale, causal)

    return attended_by_request(q, qo_indptr, kv_indptr, attend, v_cache.shape[-1])


def attended_in_rows(q, k, v, qo_indptr, kv_indptr, sm_scale, causal):
    def attend(rows, keys, request, mine):
        return attended(rows, k[keys], v[keys], sm_scale, causal)

    return attended_by_request(q, qo_indptr, kv_indptr, attend, v.shape[-1])


def attended_latently(q_nope, q_pe, ckv, kpe, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, sm_scale, causal):
    def attend(rows, pages, request, mine):
        c, p = (of_pages(cache, kv_indices[pages], kv_last_page_len[request]) for cache in (ckv, kpe))
        keys = torch.cat((c, p), -1).unsqueeze(1)
        return attended(torch.cat((rows, q_pe[mine]), -1), keys, c.unsqueeze(1), sm_scale, causal)

    return attended_by_request(q_nope, qo_indptr, kv_indptr, attend, ckv.shape[-1])


def scaled(values, scales):
    block = values.shape[-1] // scales.shape[-1]
    wide = scales.repeat_interleave(block, -1)
    if wide.shape != values.shape:
        wide = wide.repeat_interleave(values.shape[-2] // wide.shape[-2], -2)
    return values.float() * wide


def chosen_by_softmax(routing_logits, top_k):
    best, experts = routing_logits.float().topk(top_k, -1)
    return torch.zeros(routing_logits.shape).scatter_(1, experts, best.softmax(-1))


def chosen_by_groups(routing_logits, routing_bias, top_k, n_group, topk_group, factor):
    scores = routing_logits.float().sigmoid()
    biased = scores + routing_bias.float()
    groups = biased.unflatten(1, (n_group, -1))
    kept = groups.topk(min(2, groups.shape[-1]), -1)[0].sum(-1).topk(topk_group, -1)[1]
    mask = torch.zeros(groups.shape[:2]).scatter_(1, kept, 1.0).unsqueeze(-1).expand_as(groups).flatten(1)
    experts = biased.masked_fill(mask == 0, -math.inf).topk(top_k, -1)[1]
    weights = torch.zeros_like(scores).scatter_(1, experts, scores.gather(1, experts))
    return weights / weights.sum(-1, keepdim=True) * factor


def mixed(weights, hidden_states, hidden_states_scale, w1, s1, w2, s2, local_expert_offset=0):
    x = scaled(hidden_states, hidden_states_scale.T)
    output = torch.zeros_like(x)
    for expert in range(len(w1)):
        up, gate = (x @ scaled(w1[expert], s1[expert]).T).chunk(2, -1)
        found = (torch.nn.functional.silu(gate) * up) @ scaled(w2[expert], s2[expert]).T
        output += found * weights[:, expert + local_expert_offset, None]
    return output.bfloat16()
