import torch


def run(x: "float32[tokens, heads=4, width=64]") -> "y: float32[tokens, heads, width]":
    tokens, _, width = x.shape
    frequencies = 10_000.0 ** -(torch.arange(0, width, 2, device=x.device) / width)
    angles = torch.outer(torch.arange(tokens, device=x.device), frequencies).unsqueeze(1)
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
