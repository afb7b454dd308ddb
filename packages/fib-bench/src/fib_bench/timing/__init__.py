"""Stopwatch: times trusted functions on a device, without time of the host. It needs no other part of the package.

For example::

    from fib_bench.timing import measure
    print(measure(torch.nn.functional.silu, (x,), device="cuda:0").latency_ms)

`cuda` says how the methods work, `measurement` what is derived from samples.
"""

from __future__ import annotations

from .calls import CannotCapture, TimedCall
from .measurement import Measurement, StopRule, median_interval
from .measuring import Stopwatch, bracket_costs_ns, measure, stopwatch_for

__all__ = [
    "CannotCapture",
    "Measurement",
    "StopRule",
    "Stopwatch",
    "TimedCall",
    "bracket_costs_ns",
    "measure",
    "median_interval",
    "stopwatch_for",
]
