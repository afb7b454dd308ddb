"""Uses a stream of its own, and joins it."""

import torch

side = None


def run(x, weight):
    global side
    side = side or torch.cuda.Stream()
    current = torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        y = x @ weight.t()
    current.wait_stream(side)
    return y
