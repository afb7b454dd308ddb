"""Takes memory until there is none; bounded, for a machine without limits."""

import torch


def run(x, weight):
    taken = [torch.ones(1 << 28, dtype=torch.uint8) for _ in range(8)]
    raise MemoryError(f"enough after {len(taken)} times 256 MiB")
