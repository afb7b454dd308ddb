import torch


def run(qo_indptr: "int32[ends]", x: "float32[total_q]") -> "y: float32[total_q]":
    rows = torch.arange(len(x), device=x.device)
    request = torch.searchsorted(qo_indptr.long(), rows, right=True) - 1
    return x + request
