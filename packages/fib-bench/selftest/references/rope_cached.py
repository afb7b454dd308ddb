import torch


def run(x, cos_sin_cache, positions):
    cos, sin = cos_sin_cache[positions.long()].chunk(2, -1)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
