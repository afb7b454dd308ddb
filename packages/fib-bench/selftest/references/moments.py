import torch


def run(x: "float32[rows, columns=512]") -> ("mean: float32[rows]", "variance: float32[rows]"):
    return x.mean(-1), torch.var(x, dim=-1, correction=0)
