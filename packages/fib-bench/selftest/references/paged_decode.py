import torch


def run(
    q: "float32[batch, heads=4, head_dim=32]",
    k_cache: "float32[num_pages, page_size=4, heads, head_dim]",
    v_cache: "float32[num_pages, page_size, heads, head_dim]",
    kv_indptr: "int32[ends]",
    kv_indices: "int32[num_kv_indices]",
) -> "output: float32[batch, heads, head_dim]":
    output = torch.zeros_like(q)
    for index in range(len(q)):
        pages = kv_indices[int(kv_indptr[index]) : int(kv_indptr[index + 1])].long()
        keys, values = k_cache[pages].flatten(0, 1), v_cache[pages].flatten(0, 1)
        scores = torch.einsum("hd,khd->hk", q[index], keys) / q.shape[-1] ** 0.5
        output[index] = torch.einsum("hk,khd->hd", torch.softmax(scores, dim=-1), values)
    return output
