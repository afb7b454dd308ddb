"""What one trace says, and None where it does not: traces of other tools lack most of it.

The fields that are read here are those that `fib_bench.judge.record` and the judge write into ``extra``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import attrs
from fib_schema import Evaluation, Performance, Trace


def is_usable(number: object) -> bool:
    """Whether it is a positive, finite number: a latency or a speedup that can be compared."""
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < math.inf


def latency_of(trace: Trace | None, allow_flags: Collection[str] = ()) -> float | None:
    """The latency in milliseconds of a trace that passed and is ranked."""
    evaluation = trace.evaluation if trace is not None else None
    if evaluation is None or evaluation.performance is None or not evaluation.is_ranked(allow_flags):
        return None
    return _number(evaluation.performance.latency_ms)


def speedup_of(performance: Performance) -> float | None:
    """How many times faster than the reference, if both were timed."""
    return _number(performance.speedup_factor)


def interval_of(performance: Performance) -> tuple[float, float] | None:
    """The 95 % confidence interval of the latency, in milliseconds."""
    given = _group(performance.extra, "timing").get("interval_ms")
    if not isinstance(given, list | tuple) or len(given) != 2:
        return None
    low, high = given
    return (float(low), float(high)) if is_usable(low) and is_usable(high) and low <= high else None


def host_latency_of(performance: Performance) -> float | None:
    """What an eager caller waits for one call, in milliseconds."""
    return _number(_group(performance.extra, "timing").get("host_latency_ms"))


def method_of(performance: Performance) -> str | None:
    """How it was timed."""
    method = _group(performance.extra, "timing").get("method")
    return method if isinstance(method, str) else None


@attrs.frozen
class Light:
    """Where a call stands on the roofline of its device."""

    bytes: float | None
    """What must be moved."""
    operations: float | None
    """What must be done."""
    fraction: float | None
    """The share of what the device attains in practice."""


def light_of(performance: Performance) -> Light:
    """The speed of light, as far as it is known."""
    given = _group(performance.extra, "speed_of_light")
    return Light(*(_number(given.get(name)) for name in ("bytes", "operations", "attainable_fraction")))


@attrs.frozen
class Baseline:
    """A solution that was timed beside this one."""

    solution: str
    speedup: float


def baseline_of(performance: Performance) -> Baseline | None:
    """The baseline that was timed in turns with the solution."""
    given = _group(performance.extra, "baseline")
    name, speedup = given.get("solution"), _number(given.get("speedup_factor"))
    return Baseline(name, speedup) if isinstance(name, str) and speedup is not None else None


def isolation_of(evaluation: Evaluation) -> str | None:
    """The isolation level that the worker reached."""
    level = _group(evaluation.extra, "isolation").get("level")
    return None if level is None else str(level)


def _group(extra: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    group = (extra or {}).get(name)
    return group if isinstance(group, Mapping) else {}


def _number(value: Any) -> float | None:
    return float(value) if is_usable(value) else None
