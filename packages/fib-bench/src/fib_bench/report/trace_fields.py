"""Accessors for the fields of one trace. They return None for missing fields.

The judge (`fib_bench.judge.record`) writes these fields into the ``extra`` mappings; traces of other tools have few.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any

import attrs
from fib_schema import UNRANKED_FLAGS, Evaluation, Performance, Trace

from ..flags import CPU_TIMING, INTERPRETED, QUICK, SYNTHESIZED

DEFAULT_METHOD = "linked"
"""The timing method that tables do not mention."""
CPU_METHOD = "cpu"
HOST_METHODS = frozenset({"host", "sync", CPU_METHOD})
"""Timing methods whose latencies include time of the host. ``sync`` occurs in older traces only."""
_CONTRADICTION = 2.0  # a single call takes up to 1.6 times as long as one of many on a quiet CPU
_LABELS = (CPU_TIMING, INTERPRETED, QUICK, SYNTHESIZED)


def is_usable(number: object) -> bool:
    """Whether a value is a positive, finite number: a latency or a speedup that can be compared."""
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 < number <= sys.float_info.max


def blocking_flags(evaluation: Evaluation, allow_flags: Collection[str] = ()) -> tuple[str, ...]:
    """The flags that keep an evaluation out of rankings."""
    unranked = UNRANKED_FLAGS | {CPU_TIMING, INTERPRETED}
    return tuple(flag for flag in evaluation.flags if flag in unranked and (flag not in allow_flags))


def is_ranked(evaluation: Evaluation, allow_flags: Collection[str] = ()) -> bool:
    """Whether an evaluation takes part in rankings."""
    return not blocking_flags(evaluation, allow_flags)


def labels_of(evaluation: Evaluation) -> tuple[str, ...]:
    """The flags that every table shows beside a latency."""
    return tuple(label for label in _LABELS if label in evaluation.flags)


def latency_of(trace: Trace | None, allow_flags: Collection[str] = ()) -> float | None:
    """The latency in milliseconds of a trace that passed and is ranked; interpreted kernels have none."""
    evaluation = trace.evaluation if trace is not None else None
    if evaluation is None or evaluation.performance is None or not is_ranked(evaluation, allow_flags):
        return None
    return shown_latency_of(evaluation)


def shown_latency_of(evaluation: Evaluation) -> float | None:
    """The latency in milliseconds of an evaluation that passed, ranked or not; interpreted kernels have none."""
    if evaluation.performance is None or INTERPRETED in evaluation.flags:
        return None
    return _number(evaluation.performance.latency_ms)


@attrs.frozen
class Timing:
    """One measured latency in milliseconds, with its precision where known."""

    latency_ms: float
    interval_ms: tuple[float, float] | None = None
    """The 95 % confidence interval of the median."""
    uncertainty_ms: float = 0.0
    """The uncertainty of the clock, which adds to the interval on both sides."""
    method: str | None = None
    host_latency_ms: float | None = None
    """The time that an eager caller waits for one call."""
    is_interleaved: bool | None = None
    """Whether samples were interleaved with those of the solution; None if the trace does not state it."""

    @property
    def bounds_ms(self) -> tuple[float, float] | None:
        """The interval widened by the uncertainty of the clock; the lower bound may be 0.

        On the CPU it includes the latency of a single call if that contradicts the median: other programs have
        disturbed one of the two.
        """
        if self.interval_ms is None and not self.uncertainty_ms:
            return None
        low, high = self.interval_ms or (self.latency_ms, self.latency_ms)
        if self.method == CPU_METHOD and self.host_latency_ms is not None:
            if self.host_latency_ms > high * _CONTRADICTION:
                high = self.host_latency_ms
            elif self.host_latency_ms * _CONTRADICTION < low:
                low = self.host_latency_ms
        return max(low - self.uncertainty_ms, 0.0), high + self.uncertainty_ms


def timing_of(performance: Performance) -> Timing | None:
    """The timing of the solution."""
    return _timing(performance.latency_ms, _group(performance.extra, "timing"))


def reference_timing_of(performance: Performance) -> Timing | None:
    """The timing of the reference, if it was timed."""
    return _timing(performance.reference_latency_ms, _group(performance.extra, "reference_timing"))


def interval_of(performance: Performance) -> tuple[float, float] | None:
    """The 95 % confidence interval of the latency, in milliseconds."""
    return _interval(_group(performance.extra, "timing"))


def bounds_of(performance: Performance) -> tuple[float, float] | None:
    """The confidence interval of the latency, widened by the uncertainty of the clock, in milliseconds."""
    timing = timing_of(performance)
    return None if timing is None else timing.bounds_ms


def host_latency_of(performance: Performance) -> float | None:
    """The time that an eager caller waits for one call, in milliseconds."""
    return _number(_group(performance.extra, "timing").get("host_latency_ms"))


def method_of(performance: Performance) -> str | None:
    """The timing method: ``linked``, ``unlinked``, ``host`` or ``cpu``, and other names in older traces."""
    return _method(_group(performance.extra, "timing"))


def timed_by(performance: Performance) -> str:
    """The timing methods of the solution and the reference in words; empty for ``linked`` alone.

    The reference is named where only one of the two latencies includes time of the host.
    """
    method, reference = method_of(performance), _method(_group(performance.extra, "reference_timing"))
    if method is None or reference is None or (method in HOST_METHODS) == (reference in HOST_METHODS):
        return "" if method in (None, DEFAULT_METHOD) else str(method)
    return f"{method} (reference: {reference})"


@attrs.frozen
class Light:
    """The position of a call on the roofline of its device."""

    bytes: float | None
    """The bytes that the call must move."""
    operations: float | None
    """The operations that the call must execute."""
    fraction: float | None
    """The share of the speed that the device attains in practice."""


def light_of(performance: Performance) -> Light:
    """The speed of light, as far as it is known."""
    given = _group(performance.extra, "speed_of_light")
    return Light(*(_number(given.get(name)) for name in ("bytes", "operations", "attainable_fraction")))


@attrs.frozen
class Baseline:
    """A baseline that was timed interleaved with a solution."""

    solution: str
    speedup: float
    timing: Timing | None = None


def baseline_of(performance: Performance) -> Baseline | None:
    """The baseline that was timed interleaved with the solution."""
    given = _group(performance.extra, "baseline")
    name, speedup = given.get("solution"), _number(given.get("speedup_factor"))
    if not isinstance(name, str) or speedup is None:
        return None
    return Baseline(name, speedup, _timing(given.get("latency_ms"), _group(given, "timing")))


def isolation_of(evaluation: Evaluation) -> str | None:
    """The isolation level that the worker reached."""
    level = _group(evaluation.extra, "isolation").get("level")
    return None if level is None else str(level)


def _timing(latency_ms: object, given: Mapping[str, Any]) -> Timing | None:
    latency = _number(latency_ms)
    if latency is None:
        return None
    alternated = given.get("alternated")
    return Timing(
        latency_ms=latency,
        interval_ms=_interval(given),
        uncertainty_ms=_number(given.get("uncertainty_ms")) or 0.0,
        method=_method(given),
        host_latency_ms=_number(given.get("host_latency_ms")),
        is_interleaved=alternated if isinstance(alternated, bool) else None,
    )


def _interval(given: Mapping[str, Any]) -> tuple[float, float] | None:
    interval = given.get("interval_ms")
    if not isinstance(interval, list | tuple) or len(interval) != 2:
        return None
    low, high = interval
    return (float(low), float(high)) if is_usable(low) and is_usable(high) and low <= high else None


def _method(given: Mapping[str, Any]) -> str | None:
    method = given.get("method")
    return method if isinstance(method, str) else None


def _group(extra: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    group = (extra or {}).get(name)
    return group if isinstance(group, Mapping) else {}


def _number(value: Any) -> float | None:
    return float(value) if is_usable(value) else None
