import torch


def run(qo_indptr, x):
    rows = torch.arange(len(x), device=x.device)
    request = torch.searchsorted(qo_indptr.long(), rows, right=True) - 1
    return x + request
