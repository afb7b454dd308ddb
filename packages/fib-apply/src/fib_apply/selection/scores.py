"""Scores: relative speed of the solutions at one key, in logarithms of latency ratios."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from .measurements import Measurement
from .timings import Timing

Measured: TypeAlias = list[tuple[int, Measurement]]
"""Measurements with the numbers of their workloads."""
Numbered: TypeAlias = "Sequence[tuple[int, Measurement | Timing]]"
"""Latencies with the numbers of their workloads."""
Mean: TypeAlias = Callable[[Numbered], "tuple[float, tuple[float, float] | None]"]
"""Combines several latencies: the logarithm of their mean, and of both ends of its interval if all have one."""
_ROUNDING = 1e-12
"""Tolerance of logarithms, so that latencies that differ by exactly the margin count as equal."""


class Score(NamedTuple):
    """The score of a solution at a key; sorts by speed, then by coverage.

    Logarithms, because ratios of extreme latencies overflow. A tuple, because a table needs 200,000 of them.
    """

    ratio: float
    """Mean logarithm of the ratios of its latency to the fastest on each workload."""
    coverage: int
    """Negated number of workloads that it ran."""
    name: str
    low: float | None
    """The same for the lower end of the interval."""
    high: float | None
    measured: Measured

    @property
    def has_setup(self) -> bool:
        """Whether it needs a plan."""
        return any(measurement.has_setup for _, measurement in self.measured)


def score_solutions(runs: Sequence[Mapping[str, Measurement]]) -> list[Score]:
    """Score all solutions, fastest first.

    Args:
        runs: The measurements of each workload, by solution.
    """
    fastest = [math.log(min([m.latency_ms for m in run.values()])) if run else 0.0 for run in runs]
    if len(runs) == 1:
        return sorted([score_solution(name, [(0, found)], fastest) for name, found in runs[0].items()])
    of_solution: dict[str, Measured] = {}
    for number, run in enumerate(runs):
        for name, found in run.items():
            of_solution.setdefault(name, []).append((number, found))
    return sorted([score_solution(name, measured, fastest) for name, measured in of_solution.items()])


def score_solution(name: str, measured: Measured, fastest: Sequence[float]) -> Score:
    """Score one solution.

    Args:
        name: The solution.
        measured: Its measurements.
        fastest: The logarithm of the latency to compare with, for each workload.
    """
    if len(measured) == 1:  # by far the most common
        number, found = measured[0]
        log, least, interval = math.log, fastest[number], found.interval_ms
        if interval is None:
            return Score(log(found.latency_ms) - least, -1, name, None, None, measured)
        ends = log(interval[0]) - least, log(interval[1]) - least
        return Score(log(found.latency_ms) - least, -1, name, *ends, measured)
    least = math.fsum(fastest[number] for number, _ in measured) / len(measured)
    latency, of_interval = mean_logarithms(measured)
    low, high = (None, None) if of_interval is None else (of_interval[0] - least, of_interval[1] - least)
    return Score(latency - least, -len(measured), name, low, high, measured)


def mean_logarithms(numbered: Numbered) -> tuple[float, tuple[float, float] | None]:
    """The mean logarithm of latencies, and of both ends of the intervals if all have one."""
    count = len(numbered)
    latency = math.fsum(math.log(found.latency_ms) for _, found in numbered) / count
    intervals = [found.interval_ms for _, found in numbered if found.interval_ms is not None]
    if len(intervals) < count:
        return latency, None
    low = math.fsum(math.log(low) for low, _ in intervals) / count
    return latency, (low, math.fsum(math.log(high) for _, high in intervals) / count)


def log_margin(margin: float) -> float:
    """The smallest difference of logarithms of latencies that differ by more than a margin."""
    return math.log1p(margin) + _ROUNDING


def are_separate(fast: Score, slow: Score, least: float) -> bool:
    """Whether a solution is faster than a slower or equal one beyond the uncertainty of the measurements.

    Args:
        fast: The faster one.
        slow: The other.
        least: The `log_margin` that counts where one of them has no interval.
    """
    if fast.high is not None and slow.low is not None:
        return fast.high < slow.low
    return slow.ratio - fast.ratio > least


def score_over_keys(runs: Sequence[Mapping[str, Measurement]], mean: Mean) -> list[Score]:
    """Score the solutions that ran all workloads by a mean of their latencies, fastest first.

    Args:
        runs: The measurements of each workload, by solution; all with the same solutions.
        mean: Combines the latencies of a solution.
    """
    scores = []
    for name in runs[0] if runs else ():
        measured = [(number, run[name]) for number, run in enumerate(runs)]
        latency, interval = mean(measured)
        low, high = interval or (None, None)
        scores.append(Score(latency, -len(measured), name, low, high, measured))
    return sorted(scores)


def is_faster(mine: Numbered, its: Numbered, least: float, mean: Mean = mean_logarithms) -> bool:
    """Whether one is faster than another, beyond uncertainty, on the workloads that both ran.

    Args:
        mine: The latencies of the one.
        its: The latencies of the other.
        least: The `log_margin` that counts where a latency has no interval.
        mean: Combines the latencies of several workloads.
    """
    numbers = {number for number, _ in mine} & {number for number, _ in its}
    if not numbers:
        return False
    fast, fast_interval = mean([pair for pair in mine if pair[0] in numbers])
    slow, slow_interval = mean([pair for pair in its if pair[0] in numbers])
    if fast_interval is not None and slow_interval is not None:
        return fast < slow and fast_interval[1] < slow_interval[0]
    return slow - fast > least
