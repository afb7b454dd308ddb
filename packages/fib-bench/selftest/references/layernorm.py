import torch


def run(x, weight, eps):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, eps=eps)
