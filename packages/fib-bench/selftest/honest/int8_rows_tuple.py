import torch


def run(x):
    scale = torch.clamp(x.abs().max(-1).values, min=1e-8) / 127
    return torch.round(x / scale[:, None]).to(torch.int8), scale
