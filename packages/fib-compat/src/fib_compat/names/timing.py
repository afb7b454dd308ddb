"""Timing of a function in the calling process, without a worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
    from fib_bench.timing.measurement import StopRule
    from fib_bench.timing.measuring import measure

    rule = StopRule(
        iterations=iters,
        max_iterations=max(iters, 2000),
        confidence=0.005,
        max_seconds=_MAX_SECONDS,
        busy_seconds=math.inf,
    )
    return measure(fn, tuple(inputs.values()), device=device, warmup_runs=warmup, rule=rule).latency_ms
