import torch


def run(x: "float32[tokens, width=64]", weight: "float32[width, taps=4]") -> "y: float32[tokens, width]":
    width, taps = weight.shape
    padded = torch.nn.functional.pad(x.t(), (taps - 1, 0)).unsqueeze(0)
    return torch.nn.functional.conv1d(padded, weight.unsqueeze(1), groups=width)[0].t().contiguous()
