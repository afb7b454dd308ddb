"""Timings of traces: latencies with their intervals, of a solution and of the fallback that was timed beside it.

An interval is the trace's confidence interval, widened on both sides by the uncertainty of its clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from fib_schema import Performance

_NOTHING: Mapping[str, Any] = {}
_MIN_SHARE = 1e-3
"""The lower end of an interval is at least this share of the latency: it must be positive."""


class Timing(NamedTuple):
    """A latency, and the interval in which it lies if the trace states one."""

    latency_ms: float
    interval_ms: tuple[float, float] | None = None


def group(extra: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    """A mapping among the extra fields; empty if there is none."""
    found = None if extra is None else extra.get(name)
    return found if isinstance(found, Mapping) else _NOTHING


def reference_timing(performance: Performance) -> Timing | None:
    """The reference's time on the workload; None if it was not recorded."""
    return _timing(performance.reference_latency_ms, group(performance.extra, "reference_timing"))


def baseline_timing(performance: Performance, name: str) -> Timing | None:
    """The time of a baseline that was timed interleaved with the solution; None if that was not done."""
    found = group(performance.extra, "baseline")
    return _timing(found.get("latency_ms"), group(found, "timing")) if found.get("solution") == name else None


def _timing(latency_ms: Any, timing: Mapping[str, Any]) -> Timing | None:
    if not is_number(latency_ms) or not 0.0 < latency_ms < math.inf:
        return None
    return Timing(float(latency_ms), interval_of(timing, float(latency_ms)))


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number."""
    return type(value) in (int, float)


def interval_of(timing: Mapping[str, Any], latency_ms: float) -> tuple[float, float] | None:
    """The interval of a latency, widened by the uncertainty of the clock; None if a trace states neither validly.

    An interval that does not contain the latency counts as none: it could make a slow solution look fast.
    """
    uncertainty = timing.get("uncertainty_ms", 0)
    given = timing.get("interval_ms")
    if not is_number(uncertainty) or not 0 <= uncertainty < math.inf:
        return None
    if given is None and uncertainty:
        given = (latency_ms, latency_ms)
    if not isinstance(given, (list, tuple)) or len(given) != 2:
        return None
    low, high = given
    if not is_number(low) or not is_number(high) or not 0 < low <= latency_ms <= high < math.inf:
        return None
    try:
        return max(float(low) - uncertainty, float(low) * _MIN_SHARE), float(high) + uncertainty
    except OverflowError:  # an integer too large for a float
        return None
