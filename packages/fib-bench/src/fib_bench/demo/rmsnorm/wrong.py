import torch


@torch.no_grad()
def run(x, weight):
    return torch.nn.functional.rms_norm(x, weight.shape, eps=1e-6)
