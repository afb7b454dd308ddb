import torch


def run(x: "float32[rows, both=1024]") -> "y: float32[rows, half=512]":
    gate, value = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * value
