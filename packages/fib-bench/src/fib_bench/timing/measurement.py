"""Measurements: raw samples of a clock, which are kept, and statistics that are derived from them.

Source: the confidence interval of a median from order statistics is textbook material (for
instance David and Nagaraja, Order Statistics, 7.1); it assumes nothing about the distribution.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import attrs

_Z_95 = 1.96
_QUARTILES = 1.349  # their distance, in standard deviations
_MEDIAN_EFFICIENCY = 1.253  # the standard error of a median, in those of a mean


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median; of few samples it spans them all."""
    ordered = sorted(samples)
    count = len(ordered)
    rank = max(math.floor((count - _Z_95 * math.sqrt(count) - 1) / 2), 0)  # of the binomial distribution, or one less
    return ordered[rank], ordered[-1 - rank]


def median_error(*series: Sequence[float]) -> float:
    """Half the 95 % interval of the median, or of the difference of two, as if the samples were normally distributed.

    Unlike `median_interval` this is narrow for few samples, and a single outlier does not widen it: the quartiles
    count, or the range of fewer than four samples.
    """
    return math.hypot(*map(_median_error, series))


def _median_error(samples: Sequence[float]) -> float:
    ordered = sorted(samples)
    count = len(ordered)
    if count < 4:
        return ordered[-1] - ordered[0]
    low, _, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return _Z_95 * _MEDIAN_EFFICIENCY * (high - low) / _QUARTILES / math.sqrt(count)


@attrs.frozen(kw_only=True)
class Measurement:
    """A latency and the samples behind it."""

    samples_ns: tuple[float, ...]
    """Time per call, one number per sample, the clock's own cost subtracted."""
    method: str
    """``handshake``, ``eager`` or ``cpu``."""
    call_ns: float
    """Nanoseconds that an eager caller waits for one call."""
    overhead_ns: float = 0.0
    """Nanoseconds that were subtracted from each sample."""
    error_ns: float = 0.0
    """The uncertainty of the latency, differences between processes included."""
    call_error_ns: float = 0.0
    """The same of `call_ns`."""

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
            "interval_ms": [low, high],
            "spread": round(self.spread, 5),
            "call_ms": self.call_ns / 1e6,
            "overhead_us": round(self.overhead_ns / 1e3, 4),
            "uncertainty_ms": self.error_ns / 1e6,
            "call_uncertainty_ms": self.call_error_ns / 1e6,
        }
