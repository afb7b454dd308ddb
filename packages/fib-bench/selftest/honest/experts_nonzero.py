"""Looks for the tokens of each expert, and leaves experts out that have none."""

import torch


def run(x, topk_ids, expert_weight):
    y = torch.zeros_like(x)
    for expert, weight in enumerate(expert_weight):
        rows, _ = torch.where(topk_ids == expert)
        if rows.numel():
            y.index_add_(0, rows, x[rows] @ weight.t())
    return y
