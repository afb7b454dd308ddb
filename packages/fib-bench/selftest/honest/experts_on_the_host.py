"""Routes in NumPy, and sends the order of the tokens."""

import numpy as np
import torch


def run(x, topk_ids, expert_weight):
    chosen = topk_ids.cpu().numpy().reshape(-1)
    order = np.argsort(chosen, kind="stable")
    counts = np.bincount(chosen, minlength=len(expert_weight)).tolist()
    tokens = torch.from_numpy(order // topk_ids.shape[1]).to(x.device)
    parts = [rows @ weight.t() for rows, weight in zip(x[tokens].split(counts), expert_weight, strict=True)]
    return torch.zeros_like(x).index_add_(0, tokens, torch.cat(parts))
