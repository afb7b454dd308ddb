"""Ratios of two latencies, and the rule that decides whether a ratio is printed as a number.

Every speedup that a report shows is a `Ratio`. It is a number only where both latencies determine it: not if they
were measured at different times, not if its 95 % interval includes 1, and not if that interval is wide.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from enum import StrEnum

import attrs
from fib_schema import Performance

from .quantities import ratio_with_interval
from .trace_fields import Timing, baseline_of, is_usable, reference_timing_of, timing_of

MAX_HALF_WIDTH = 0.1
"""The largest half width of the interval, relative to the ratio, at which the ratio is a number."""


class Outcome(StrEnum):
    """The ways to show a ratio."""

    NUMBER = "number"
    NOISE = "noise"
    """The interval includes 1: the latencies do not differ by more than their noise."""
    IMPRECISE = "imprecise"
    """The interval is wide and excludes 1."""
    NOT_COMPARABLE = "not comparable"
    """The latencies were measured at different times, so the state of the machine may differ."""
    UNKNOWN = "unknown"
    """One of the latencies is missing."""


@attrs.frozen
class Ratio:
    """The quotient of two latencies.

    Args:
        point: The quotient of the medians; None if one of them is missing.
        interval: The range of the quotient by the intervals of both latencies; None if neither is known.
        is_comparable: Whether the latencies were measured interleaved, as far as traces tell.
        is_imprecise: Whether it is imprecise whatever the interval.
    """

    point: float | None
    interval: tuple[float, float] | None = None
    is_comparable: bool = True
    is_imprecise: bool = False

    @property
    def outcome(self) -> Outcome:
        """The way to show it."""
        if self.point is None:
            return Outcome.UNKNOWN
        if not self.is_comparable:
            return Outcome.NOT_COMPARABLE
        if self.is_imprecise:
            return Outcome.IMPRECISE
        if self.interval is None:
            return Outcome.NUMBER
        low, high = self.interval
        if low <= 1.0 <= high:
            return Outcome.NOISE
        return Outcome.NUMBER if self._is_narrow else Outcome.IMPRECISE

    @property
    def value(self) -> float | None:
        """The number, where it is one."""
        return self.point if self.outcome is Outcome.NUMBER else None

    @property
    def rank_value(self) -> float | None:
        """The number by which solutions are ordered: the value, or 1 for noise in a narrow interval; else None."""
        return 1.0 if self.outcome is Outcome.NOISE and self._is_narrow else self.value

    @property
    def certain_value(self) -> float | None:
        """The number that ``fast_p`` counts: `rank_value`, else the lower bound of the interval; None if unknown."""
        if self.outcome in (Outcome.UNKNOWN, Outcome.NOT_COMPARABLE):
            return None
        if self.rank_value is not None or self.interval is None:
            return self.rank_value
        return self.interval[0]

    @property
    def _is_narrow(self) -> bool:
        if self.point is None or self.interval is None:
            return False
        low, high = self.interval
        return (high - low) / 2 <= MAX_HALF_WIDTH * self.point

    @property
    def text(self) -> str:
        """The number with its interval, such as ``6.9x ± 0.4``, or why there is none."""
        if self.value is not None:
            return ratio_with_interval(self.value, self.interval)
        return "-" if self.outcome is Outcome.UNKNOWN else str(self.outcome)


UNKNOWN = Ratio(None)


def speedup_of(performance: Performance, reference_bounds_ms: tuple[float, float] | None = None) -> Ratio:
    """The speedup of a solution over the reference.

    Args:
        performance: The latencies of a trace.
        reference_bounds_ms: A wider range of the reference's latency, if more than this trace is known about it.
    """
    if not is_usable(performance.speedup_factor):
        return UNKNOWN
    reference = reference_timing_of(performance)
    return _quotient(performance.speedup_factor, reference, timing_of(performance), reference_bounds_ms)


def baseline_speedup_of(performance: Performance) -> Ratio:
    """The speedup of a solution over the baseline that was timed interleaved with it."""
    baseline = baseline_of(performance)
    if baseline is None:
        return UNKNOWN
    return _quotient(baseline.speedup, baseline.timing, timing_of(performance))


def ratio_of(numerator: Timing | None, denominator: Timing | None) -> Ratio:
    """The quotient of two latencies of separate traces."""
    if numerator is None or denominator is None:
        return UNKNOWN
    return _quotient(numerator.latency_ms / denominator.latency_ms, numerator, denominator)


def mean_of(ratios: Sequence[Ratio]) -> Ratio:
    """The geometric mean of ratios that are known. Errors of single ratios are taken to be correlated."""
    known = [ratio for ratio in ratios if ratio.point is not None]
    points = [ratio.point for ratio in known if ratio.point is not None]
    if not points:
        return UNKNOWN
    interval = None
    if any(ratio.interval is not None for ratio in known):
        pairs = [ratio.interval or (point, point) for ratio, point in zip(known, points, strict=True)]
        low, high = (_geometric_mean(bounds) for bounds in zip(*pairs, strict=True))
        interval = low, high
    return Ratio(statistics.geometric_mean(points), interval, all(ratio.is_comparable for ratio in known))


def weighted_mean_of(ratios: Sequence[Ratio], weights: Sequence[float]) -> Ratio:
    """The arithmetic mean of ratios that are known, with positive weights. Errors are taken to be correlated."""
    known = [(ratio, weight) for ratio, weight in zip(ratios, weights, strict=True) if ratio.point is not None]
    total = sum(weight for _, weight in known)
    if not total > 0.0:
        return UNKNOWN

    def mean(values: Iterable[float]) -> float:
        return sum(value * weight for value, (_, weight) in zip(values, known, strict=True)) / total

    points = [ratio.point or 0.0 for ratio, _ in known]
    interval = None
    if any(ratio.interval is not None for ratio, _ in known):
        bounds = [ratio.interval or (point, point) for (ratio, _), point in zip(known, points, strict=True)]
        interval = mean(low for low, _ in bounds), mean(high for _, high in bounds)
    return Ratio(mean(points), interval, all(ratio.is_comparable for ratio, _ in known))


def _geometric_mean(bounds: Sequence[float]) -> float:
    return 0.0 if min(bounds) <= 0.0 else statistics.geometric_mean(bounds)


def _quotient(
    point: float,
    numerator: Timing | None,
    denominator: Timing | None,
    numerator_bounds_ms: tuple[float, float] | None = None,
) -> Ratio:
    is_comparable = numerator is None or numerator.is_interleaved is not False
    above = numerator_bounds_ms or (numerator.bounds_ms if numerator is not None else None)
    below = denominator.bounds_ms if denominator is not None else None
    if above is None and below is None:
        return Ratio(point, None, is_comparable)
    above = above or _exactly(numerator)
    below = below or _exactly(denominator)
    if above is None or below is None:
        return Ratio(point, None, is_comparable)
    high = above[1] / below[0] if below[0] > 0 else float("inf")
    return Ratio(point, (above[0] / below[1], high), is_comparable)


def _exactly(timing: Timing | None) -> tuple[float, float] | None:
    return None if timing is None else (timing.latency_ms, timing.latency_ms)
