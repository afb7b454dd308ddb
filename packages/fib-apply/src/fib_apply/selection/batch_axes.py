"""Batch axes: the axes that one solution has to serve at all sizes if `ApplyConfig.batch_invariant` is set.

A definition marks them by tags, ``batch_axis:M``. Without such a tag of one of
its variable axes all of these count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

from fib_schema import Definition

from .scores import Mean, Numbered

TAG = "batch_axis:"
"""The tag that marks an axis, without the axis."""


def batch_axes(definition: Definition) -> tuple[str, ...]:
    """The batch axes of a definition."""
    variable = tuple(definition.var_axes)
    marked = {tag.removeprefix(TAG).strip() for tag in definition.tags if tag.startswith(TAG)}
    return tuple(axis for axis in variable if axis in marked) or variable


def mean_over_keys(keys: Sequence[Hashable]) -> Mean:
    """The mean by which solutions are compared over several keys: the total time of the keys, by their number.

    Each key counts by the arithmetic mean over its workloads.

    Args:
        keys: The key of each workload.
    """
    counts = Counter(keys)

    def mean(measured: Numbered) -> tuple[float, tuple[float, float] | None]:
        shares = [1.0 / counts[keys[number]] for number, _ in measured]
        total = math.fsum(shares)
        latencies = (share * found.latency_ms for share, (_, found) in zip(shares, measured, strict=True))
        latency = math.log(math.fsum(latencies) / total)
        intervals = [found.interval_ms for _, found in measured if found.interval_ms is not None]
        if len(intervals) < len(measured):
            return latency, None
        low, high = (
            math.log(math.fsum(share * ends[end] for share, ends in zip(shares, intervals, strict=True)) / total)
            for end in (0, 1)
        )
        return latency, (low, high)

    return mean
