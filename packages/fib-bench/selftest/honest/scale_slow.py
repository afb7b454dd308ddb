import torch


def run(x):
    return torch.cat([part * 2 for part in x.split(1 + len(x) // 500)])
