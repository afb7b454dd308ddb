"""Takes all memory of the device, and works on."""

import torch

taken = []


def run(x, weight):
    while True:
        taken.append(torch.empty(1 << 30, dtype=torch.uint8, device=x.device))
