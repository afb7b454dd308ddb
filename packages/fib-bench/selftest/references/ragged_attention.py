import torch


def run(
    q: "float32[total_q, heads=4, head_dim=32]",
    k: "float32[total_kv, heads, head_dim]",
    v: "float32[total_kv, heads, head_dim]",
    qo_indptr: "int32[ends]",
    kv_indptr: "int32[ends]",
) -> "output: float32[total_q, heads, head_dim]":
    output = torch.zeros_like(q)
    for index in range(len(qo_indptr) - 1):
        rows = slice(int(qo_indptr[index]), int(qo_indptr[index + 1]))
        keys = slice(int(kv_indptr[index]), int(kv_indptr[index + 1]))
        scores = torch.einsum("qhd,khd->hqk", q[rows], k[keys]) / q.shape[-1] ** 0.5
        output[rows] = torch.einsum("hqk,khd->qhd", torch.softmax(scores, dim=-1), v[keys])
    return output
