import torch


def run(x: "float32[rows, columns=512]", weight: "float32[columns]", eps: "float32") -> "y: float32[rows, columns]":
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, eps=eps)
