import torch


def run(x):
    values, places = torch.sort(x, dim=-1, descending=True)
    return values[:, :8], places[:, :8]
