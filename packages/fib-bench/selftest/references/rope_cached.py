import torch


def run(
    x: "float32[tokens, width=128]", cos_sin_cache: "float32[max_position=131072, width]", positions: "int32[tokens]"
) -> "y: float32[tokens, width]":
    cos, sin = cos_sin_cache[positions.long()].chunk(2, -1)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
