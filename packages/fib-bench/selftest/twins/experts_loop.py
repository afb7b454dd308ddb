import torch


def run(x, topk_ids, expert_weight):
    y = torch.zeros_like(x)
    for expert, weight in enumerate(expert_weight):
        rows = torch.nonzero(topk_ids == expert)[:, 0]
        y.index_add_(0, rows, x[rows] @ weight.t())
    return y
