import torch


def run(q, k_cache, v_cache, kv_indptr, kv_indices):
    output = torch.zeros_like(q)
    for index in range(len(q)):
        pages = kv_indices[int(kv_indptr[index]) : int(kv_indptr[index + 1])].long()
        keys, values = k_cache[pages].flatten(0, 1), v_cache[pages].flatten(0, 1)
        scores = torch.einsum("hd,khd->hk", q[index], keys) / q.shape[-1] ** 0.5
        output[index] = torch.einsum("hk,khd->hd", torch.softmax(scores, dim=-1), values)
    return output
