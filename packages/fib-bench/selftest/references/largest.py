import torch


def run(x):
    values, places = torch.topk(x, 8, dim=-1)
    return values, places
