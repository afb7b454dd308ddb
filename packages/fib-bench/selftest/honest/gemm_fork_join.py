"""Forks two streams by an event, one for each half of the rows, and joins both by events before it returns."""

import torch

streams = []


def run(x, weight, y):
    if not streams:
        streams.extend(torch.cuda.Stream(x.device) for _ in range(2))
    current, half = torch.cuda.current_stream(), len(x) // 2
    fork = torch.cuda.Event()
    fork.record(current)
    for stream, rows in zip(streams, (slice(0, half), slice(half, len(x))), strict=True):
        stream.wait_event(fork)
        with torch.cuda.stream(stream):
            torch.mm(x[rows], weight.t(), out=y[rows])
        join = torch.cuda.Event()
        join.record(stream)
        current.wait_event(join)
