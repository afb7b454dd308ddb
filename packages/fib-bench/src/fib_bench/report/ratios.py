"""Ratios of two latencies, and how latencies and ratios are printed.

Every speedup that a report shows is a `Ratio`: a number with its 95 % interval, and a mark beside it where both
latencies do not determine it: the interval includes 1, or it is wide.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import attrs
from fib_schema import UNRANKED_FLAGS, Evaluation, Performance
from fib_schema.display import format_latency, latency_unit
from fib_schema.trace_facts import (
    CPU_TIMING,
    INTERPRETED,
    OLDER_TIMING,
    Timing,
    baseline_of,
    extra_group,
    is_usable,
    reference_timing_of,
    speedup_interval_of,
    timing_of,
)

from ..flags import SYNTHESIZED

DEFAULT_METHOD = "handshake"
"""The timing method that tables do not mention."""
MAX_HALF_WIDTH = 0.1
"""The largest half width of the interval, relative to the ratio, at which the ratio is a number."""
_LABELS = (CPU_TIMING, OLDER_TIMING, INTERPRETED, *sorted(UNRANKED_FLAGS), SYNTHESIZED)
_MAX_DIGITS = 4
"""Limit of the significant digits of a value, however narrow its interval."""
_WIDE = 0.3
"""A wider interval, as a share of the value, is shown by its bounds: its sides may differ by far."""

Bounds = tuple[float, float]


class Outcome(StrEnum):
    """The verdicts on a ratio; all but the first are marks beside it."""

    NUMBER = "number"
    NOISE = "noise"
    """The interval includes 1: the latencies do not differ by more than their noise."""
    WIDE = "wide"
    """The interval is wide and excludes 1."""
    UNKNOWN = "unknown"
    """One of the latencies is missing."""


@attrs.frozen
class Ratio:
    """The quotient of two latencies.

    Args:
        point: The quotient of the medians; None if one of them is missing.
        interval: The range of the quotient by the intervals of both latencies; None if neither is known.
        is_wide: Whether its interval counts as wide in any case.
    """

    point: float | None
    interval: Bounds | None = None
    is_wide: bool = False

    @property
    def outcome(self) -> Outcome:
        """The verdict on it."""
        if self.point is None:
            return Outcome.UNKNOWN
        if self.is_wide and not self._has_one:
            return Outcome.WIDE
        if self.interval is None:
            return Outcome.NUMBER
        if self._has_one:
            return Outcome.NOISE
        return Outcome.NUMBER if self.is_narrow else Outcome.WIDE

    @property
    def mark(self) -> str:
        """The mark beside the number, or nothing."""
        return "" if self.outcome in (Outcome.NUMBER, Outcome.UNKNOWN) else str(self.outcome)

    @property
    def certain_value(self) -> float | None:
        """The number that ``fast_p`` counts: 1 for narrow noise, the lower bound of what else is marked."""
        if self.outcome is Outcome.NUMBER or self.interval is None:
            return self.point
        return 1.0 if self._has_one and self.is_narrow else self.interval[0]

    @property
    def _has_one(self) -> bool:
        return self.interval is not None and self.interval[0] <= 1.0 <= self.interval[1]

    @property
    def is_narrow(self) -> bool:
        """Whether the interval is known, and its half width is at most `MAX_HALF_WIDTH` of the number."""
        if self.point is None or self.interval is None:
            return False
        low, high = self.interval
        return (high - low) / 2 <= MAX_HALF_WIDTH * self.point

    @property
    def text(self) -> str:
        """The number, its interval and its mark, such as ``6.9x ± 0.4`` or ``1.02x (0.98 .. 1.07) noise``."""
        if self.point is None:
            return "-"
        if not self.mark:
            return ratio_with_interval(self.point, self.interval)
        interval = "" if self.interval is None else f" ({self.interval[0]:.3g} .. {self.interval[1]:.3g})"
        return f"{format_ratio(self.point)}{interval} {self.mark}"

    def to_plain(self) -> dict[str, Any]:
        """The number, its interval, its mark and the text, for JSON and CSV."""
        return {"value": self.point, "interval": self.interval, "mark": self.mark, "text": self.text}


UNKNOWN = Ratio(None)


def plain_record(record: Any) -> dict[str, Any]:
    """An attrs record of a report as plain objects."""
    return attrs.asdict(record, value_serializer=lambda _, __, v: v.to_plain() if isinstance(v, Ratio) else v)


def speedup_of(performance: Performance) -> Ratio:
    """The speedup of a solution over the reference."""
    if not is_usable(performance.speedup_factor):
        return UNKNOWN
    found = _quotient(performance.speedup_factor, reference_timing_of(performance), timing_of(performance))
    return attrs.evolve(found, interval=speedup_interval_of(performance) or found.interval)


def baseline_speedup_of(performance: Performance) -> Ratio:
    """The speedup of a solution over the baseline that was timed interleaved with it."""
    baseline = baseline_of(performance)
    if baseline is None or baseline.speedup is None:
        return UNKNOWN
    return _quotient(baseline.speedup, baseline.timing, timing_of(performance))


def ratio_of(numerator: Timing | None, denominator: Timing | None) -> Ratio:
    """The quotient of two latencies of separate traces; unknown if they are of different kinds."""
    if numerator is None or denominator is None:
        return UNKNOWN
    return _quotient(numerator.latency_ms / denominator.latency_ms, numerator, denominator)


def mean_of(ratios: Iterable[Ratio]) -> Ratio:
    """The geometric mean of the ratios that are known. Errors of single ratios are taken to be correlated."""
    known = [(ratio, ratio.point) for ratio in ratios if ratio.point is not None]
    if not known:
        return UNKNOWN
    interval = None
    if any(ratio.interval is not None for ratio, _ in known):
        lows, highs = zip(*(ratio.interval or (point, point) for ratio, point in known), strict=True)
        interval = _geometric_mean(lows), _geometric_mean(highs)
    point = _geometric_mean([point for _, point in known])
    return Ratio(point, interval)


def _geometric_mean(values: Sequence[float]) -> float:
    return 0.0 if min(values) <= 0.0 else statistics.geometric_mean(values)


def _quotient(point: float, numerator: Timing | None, denominator: Timing | None) -> Ratio:
    if numerator is not None and denominator is not None and not numerator.is_comparable(denominator):
        return UNKNOWN
    above, below = timing_bounds(numerator), timing_bounds(denominator)
    if numerator is None or denominator is None or (above is None and below is None):
        return Ratio(point)
    above = above or (numerator.latency_ms, numerator.latency_ms)
    below = below or (denominator.latency_ms, denominator.latency_ms)
    return Ratio(point, (above[0] / below[1], above[1] / below[0]))


def timing_bounds(timing: Timing | None) -> Bounds | None:
    """The confidence interval of a latency, widened by the uncertainty of the clock, in milliseconds."""
    return None if timing is None else timing.bounds_ms


def bounds_of(performance: Performance) -> Bounds | None:
    """The bounds of a solution's latency, see `timing_bounds`."""
    return timing_bounds(timing_of(performance))


def labels_of(evaluation: Evaluation) -> tuple[str, ...]:
    """The flags that every table shows beside a latency."""
    return tuple(label for label in _LABELS if label in evaluation.flags)


def timed_by(performance: Performance) -> str:
    """The timing methods of the solution and the reference in words; empty for ``handshake`` alone.

    The reference is named where it has another kind of latency, so that there is no speedup.
    """
    timing, reference = timing_of(performance), reference_timing_of(performance)
    if timing is None or timing.method is None:
        return ""
    if reference is None or timing.is_comparable(reference):
        return "" if timing.method == DEFAULT_METHOD else timing.method
    return f"{timing.method} (reference: {reference.method})"


def call_of(performance: Performance) -> float | None:
    """The milliseconds that an eager caller waits; None where no clock of the judge measured it, and on the CPU."""
    timing = timing_of(performance)
    call = None if timing is None or timing.method == "cpu" else timing.of_call
    return None if call is None else call.latency_ms


def light_of(performance: Performance) -> float | None:
    """The share of the speed that the device attains in practice; None where a trace does not say."""
    share = extra_group(performance.extra, "speed_of_light").get("attainable_fraction")
    return float(share) if is_usable(share) else None


def latency_with_bounds(milliseconds: float, bounds_ms: Bounds | None) -> str:
    """A latency with the half width of its interval, such as ``12.3 us ± 0.2``, or a wide interval with both bounds."""
    half_width = _half_width(milliseconds, bounds_ms)
    if bounds_ms is None or not half_width:
        return format_latency(milliseconds)
    factor, unit = latency_unit(milliseconds)
    if half_width > _WIDE * milliseconds:
        return f"{format_latency(milliseconds)} ({latency_range(bounds_ms)})"
    value, error = _rounded(milliseconds * factor, half_width * factor)
    return f"{value} {unit} ± {error}"


def latency_range(latencies_ms: Bounds | None) -> str:
    """The shortest and the longest of several latencies; a dash if there is none."""
    if latencies_ms is None:
        return "-"
    low, high = map(format_latency, latencies_ms)
    if low == high:
        return low
    number, unit = low.split()
    return f"{number if high.endswith(f' {unit}') else low} .. {high}"


def format_ratio(ratio: float) -> str:
    """A factor with two decimals, or with two digits where two decimals would be zeros."""
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.2g}x"


def ratio_with_interval(ratio: float, interval: Bounds | None) -> str:
    """A factor with the half width of its interval, such as ``6.9x ± 0.4``."""
    half_width = _half_width(ratio, interval)
    if not half_width:
        return format_ratio(ratio)
    value, error = _rounded(ratio, half_width)
    return f"{value}x ± {error}"


def _half_width(value: float, interval: Bounds | None) -> float:
    return 0.0 if interval is None else max(value - interval[0], interval[1] - value, 0.0)


def _rounded(value: float, half_width: float) -> tuple[str, str]:
    """A value and its half width, rounded up to one significant digit, with as many decimals."""
    if not math.isfinite(half_width) or value <= 0:
        return f"{value:.3g}", f"{half_width:.1g}"
    natural = -math.floor(math.log10(half_width))
    natural -= math.ceil(half_width * 10.0**natural - 1e-9) == 10
    decimals = min(natural, _MAX_DIGITS - 1 - math.floor(math.log10(value)))
    error = math.ceil(half_width * 10.0**decimals - 1e-9) / 10.0**decimals
    return f"{round(value, decimals):.{max(decimals, 0)}f}", f"{error:.{max(decimals, 0)}f}"
