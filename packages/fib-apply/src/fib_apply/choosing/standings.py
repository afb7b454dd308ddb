"""How fast solutions are at a key, against each other: the arithmetic of choosing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from .measurements import Measurement

Measured: TypeAlias = list[tuple[int, Measurement]]
"""Measurements with the numbers of their workloads."""
_ROUNDING = 1e-12
"""Of logarithms: latencies that differ by exactly the margin are the same."""


class Standing(NamedTuple):
    """A solution at a key; sorts by speed, then by coverage.

    Logarithms, for the ratios of odd latencies leave the range of floats. No attrs class: 200,000
    of them are made for a table.
    """

    ratio: float
    """Of its latency to the fastest on each workload: the mean logarithm."""
    coverage: int
    """The negated number of the workloads that it ran."""
    name: str
    low: float | None
    """Likewise of the interval."""
    high: float | None
    measured: Measured

    @property
    def has_setup(self) -> bool:
        """Whether it needs a plan."""
        return any(measurement.has_setup for _, measurement in self.measured)


def standings(runs: Sequence[Mapping[str, Measurement]]) -> list[Standing]:
    """Every solution's, in order of speed.

    Args:
        runs: The measurements of each workload, by solution.
    """
    fastest = [math.log(min([m.latency_ms for m in run.values()])) if run else 0.0 for run in runs]
    if len(runs) == 1:
        return sorted([standing(name, [(0, found)], fastest) for name, found in runs[0].items()])
    of_solution: dict[str, Measured] = {}
    for number, run in enumerate(runs):
        for name, found in run.items():
            of_solution.setdefault(name, []).append((number, found))
    return sorted([standing(name, measured, fastest) for name, measured in of_solution.items()])


def standing(name: str, measured: Measured, fastest: Sequence[float]) -> Standing:
    """One solution's.

    Args:
        name: The solution.
        measured: What it achieved.
        fastest: The logarithm of what to compare with, for each workload.
    """
    if len(measured) == 1:  # by far the most common
        number, found = measured[0]
        log, least, interval = math.log, fastest[number], found.interval_ms
        if interval is None:
            return Standing(log(found.latency_ms) - least, -1, name, None, None, measured)
        ends = log(interval[0]) - least, log(interval[1]) - least
        return Standing(log(found.latency_ms) - least, -1, name, *ends, measured)
    least = math.fsum(fastest[number] for number, _ in measured) / len(measured)
    latency, of_interval = mean_logarithms([found for _, found in measured])
    low, high = (None, None) if of_interval is None else (of_interval[0] - least, of_interval[1] - least)
    return Standing(latency - least, -len(measured), name, low, high, measured)


def mean_logarithms(measured: Sequence[Measurement]) -> tuple[float, tuple[float, float] | None]:
    """Those of the latencies, and those of both ends of the intervals if all have one."""
    count = len(measured)
    latency = math.fsum(math.log(m.latency_ms) for m in measured) / count
    intervals = [m.interval_ms for m in measured if m.interval_ms is not None]
    if len(intervals) < count:
        return latency, None
    low = math.fsum(math.log(low) for low, _ in intervals) / count
    return latency, (low, math.fsum(math.log(high) for _, high in intervals) / count)


def separation(margin: float) -> float:
    """By how much logarithms of latencies differ at least if the latencies differ by more than a margin."""
    return math.log1p(margin) + _ROUNDING


def are_separate(fast: Standing, slow: Standing, least: float) -> bool:
    """Whether one that is no slower than another is faster for certain.

    Args:
        fast: The one.
        slow: The other.
        least: The `separation` to ask for where one of them has no interval.
    """
    if fast.high is not None and slow.low is not None:
        return fast.high < slow.low
    return slow.ratio - fast.ratio > least


def beats(one: Standing, other: Standing, least: float) -> bool:
    """Whether one is faster for certain than another on the workloads that both ran."""
    mine, its = dict(one.measured), dict(other.measured)
    if mine.keys() != its.keys():
        shared = sorted(mine.keys() & its.keys())
        if not shared:
            return False
        zeros = [0.0] * (shared[-1] + 1)
        one = standing(one.name, [(number, mine[number]) for number in shared], zeros)
        other = standing(other.name, [(number, its[number]) for number in shared], zeros)
    return one.ratio < other.ratio and are_separate(one, other, least)
