"""Measurements: raw samples of a stopwatch, statistics of them, and the rule that stops sampling.

Raw samples are kept; everything else is derived from them.

Source: the confidence interval of a median from order statistics is textbook material (for
instance David and Nagaraja, Order Statistics, 7.1); it assumes nothing about the distribution.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache

import attrs

_Z_95 = 1.96
_MAX_EXACT = 1000
_QUARTILES = 1.349  # their distance, in standard deviations
_MEDIAN_EFFICIENCY = 1.253  # the standard error of a median, in those of a mean


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median; of few samples it spans them all.

    Args:
        samples: In any order, at least one.
    """
    ordered = sorted(samples)
    rank = _rank_below(len(ordered))
    return ordered[rank], ordered[-1 - rank]


@cache
def _rank_below(count: int) -> int:
    """The largest rank, from 0, that lies above the median with a probability of at most 2.5 %; 0 if none does."""
    if count > _MAX_EXACT:
        return math.floor((count - _Z_95 * math.sqrt(count)) / 2)
    rank, ways, reached = 0, 1, 1  # of 2 ** count, the ways to have `rank`, and at most `rank`, samples below
    while 40 * reached <= 1 << count:
        rank += 1
        ways = ways * (count - rank + 1) // rank
        reached += ways
    return max(rank - 1, 0)


def trimmed_mean(samples: Sequence[float]) -> float:
    """The mean without the smallest and the largest tenth: a coarse clock does not quantise it.

    Args:
        samples: In any order, at least one.
    """
    ordered = sorted(samples)
    cut = len(ordered) // 10
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def median_error(samples: Sequence[float]) -> float:
    """Half the 95 % interval of the median, from the quartiles, as if the samples were normally distributed.

    Unlike `median_interval` this is narrow for few samples, and a single outlier does not widen it.

    Args:
        samples: In any order, at least one; of fewer than four, their range counts.
    """
    ordered = sorted(samples)
    count = len(ordered)
    if count < 4:
        return ordered[-1] - ordered[0]
    low, _, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return _Z_95 * _MEDIAN_EFFICIENCY * (high - low) / _QUARTILES / math.sqrt(count)


def relative_interval(samples: Sequence[float]) -> float:
    """Half the width of that interval, relative to the median."""
    low, high = median_interval(samples)
    median = statistics.median(samples)
    return (high - low) / 2 / median if median > 0 else math.inf


@attrs.frozen(kw_only=True)
class Measurement:
    """A latency and the samples behind it."""

    samples_ns: tuple[float, ...]
    """Time per call, one number per sample, the clock's own cost subtracted."""
    method: str
    """``graph``, ``queued``, ``sync`` or ``host``: see `fib_bench.timing`."""
    chain: int
    """Calls per sample."""
    host_ns: float
    """Nanoseconds that an eager caller waits for one call."""
    overhead_ns: float = 0.0
    """Nanoseconds that were subtracted from each sample."""

    @property
    def latency_ms(self) -> float:
        """The median."""
        return statistics.median(self.samples_ns) / 1e6

    @property
    def interval_ms(self) -> tuple[float, float]:
        """The 95 % confidence interval of the median."""
        low, high = median_interval(self.samples_ns)
        return low / 1e6, high / 1e6

    @property
    def spread(self) -> float:
        """The distance between the quartiles, relative to the median."""
        ordered = sorted(self.samples_ns)
        count = len(ordered)
        median = statistics.median(ordered)
        return (ordered[3 * count // 4] - ordered[count // 4]) / median if median > 0 else 0.0

    def to_extra(self) -> dict[str, object]:
        """The fields of a trace."""
        low, high = self.interval_ms
        return {
            "method": self.method,
            "samples": len(self.samples_ns),
            "calls_per_sample": self.chain,
            "interval_ms": [low, high],
            "spread": round(self.spread, 5),
            "host_latency_ms": self.host_ns / 1e6,
            "overhead_us": round(self.overhead_ns / 1e3, 4),
        }


MIN_SAMPLES, ENOUGH_SAMPLES = 3, 20


@attrs.frozen(kw_only=True)
class StopRule:
    """Conditions for ending the sampling. The counts are the harness's own: no timed function lowers them."""

    iterations: int
    """Calls to time, unless one of the caps is hit; a sample has several of short functions."""
    max_iterations: int
    confidence: float
    """Go on until half the confidence interval of the median is narrower than this share of it."""
    max_seconds: float
    """The cap on everything; `MIN_SAMPLES` are taken in any case."""
    busy_seconds: float
    """The cap on the time that the device was busy; `ENOUGH_SAMPLES` are taken in any case, or `iterations`."""

    def is_done(self, samples_ns: Sequence[float], elapsed_seconds: float, busy_seconds: float, chain: int = 1) -> bool:
        """Whether to stop.

        Args:
            samples_ns: What was taken so far.
            elapsed_seconds: In how much time.
            busy_seconds: For how much of it the device was busy.
            chain: Calls per sample.
        """
        count = len(samples_ns)
        if count < MIN_SAMPLES:
            return False
        if count >= self.max_iterations or elapsed_seconds >= self.max_seconds:
            return True
        if busy_seconds >= self.busy_seconds:
            return count >= min(self.iterations, ENOUGH_SAMPLES)
        is_enough = count * chain >= self.iterations and count >= min(self.iterations, ENOUGH_SAMPLES)
        return is_enough and relative_interval(samples_ns) <= self.confidence
