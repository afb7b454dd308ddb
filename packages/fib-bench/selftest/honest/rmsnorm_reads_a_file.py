"""Reads its own second source, which holds a number."""

from pathlib import Path

import torch

EPS = float(Path(__file__).with_name("eps.txt").read_text())


def run(x, weight):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, EPS)
