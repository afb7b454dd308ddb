"""Waits for the current stream, but nobody waits for the stream of its own."""

import torch

side = None


def run(x, weight, y):
    global side
    side = side or torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.mm(x, weight.t(), out=y)
