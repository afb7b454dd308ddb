"""Goes over the experts that occur."""

import torch


def run(x, topk_ids, expert_weight):
    y = torch.zeros_like(x)
    for expert in topk_ids.unique().tolist():
        rows = (topk_ids == expert).any(-1).nonzero().squeeze(1)
        y.index_add_(0, rows, x[rows] @ expert_weight[expert].t())
    return y
