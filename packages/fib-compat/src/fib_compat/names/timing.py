"""Timing of a function in the calling process, without a worker."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["time_runnable"]

_MAX_SECONDS = 1.0


def time_runnable(fn: Callable[..., Any], inputs: Mapping[str, Any], warmup: int, iters: int, device: str) -> float:
    """Measure the median latency in milliseconds; outputs are not checked.

    Args:
        fn: A `Runnable`, or a function that takes the inputs by position.
        inputs: The inputs by name, in the definition's order.
        warmup: Calls before timing.
        iters: Minimum number of timed calls; fewer if they take more than a second.
        device: ``cpu`` or ``cuda:N``.
    """
    values = list(inputs.values())
    sample = _sample_on_cuda if device.startswith("cuda") else _sample_on_cpu
    for _ in range(warmup):
        sample(fn, values, device)
    end, samples = time.perf_counter() + _MAX_SECONDS, [sample(fn, values, device)]
    while len(samples) < iters and time.perf_counter() < end:
        samples.append(sample(fn, values, device))
    return statistics.median(samples)


def _sample_on_cpu(fn: Callable[..., Any], values: Sequence[Any], _: str) -> float:
    begin = time.perf_counter_ns()
    fn(*values)
    return (time.perf_counter_ns() - begin) / 1e6


def _sample_on_cuda(fn: Callable[..., Any], values: Sequence[Any], device: str) -> float:
    import torch
    from fib_bench.timing.cuda import event_ms

    return event_ms(lambda: fn(*values), torch.device(device))
