import torch


def run(topk_ids: "int32[num_tokens, top_k=8]") -> ("place: int32[num_tokens, top_k]", "counts: int32[num_experts=64]"):
    flat = topk_ids.flatten().long()
    one_hot = torch.nn.functional.one_hot(flat, 64)
    counts = one_hot.sum(0)
    rank = (one_hot.cumsum(0) * one_hot).sum(1) - 1
    start = counts.cumsum(0) - counts
    return (start[flat] + rank).int().view(topk_ids.shape), counts.int()
