"""Statistics of rounds: means and ratios with 95 % intervals, and the records of an arm."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arm_turns import Key

LEAST_ROUNDS = 5
SPEED, FIRST = "tokens_per_second", "first_token_ms"
"""Names of what is timed in records."""
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
)  # fmt: skip
"""Quantiles of Student's t distribution for 95 % intervals, from one degree of freedom on."""

Record = Mapping[str, Any]
Records = Mapping[Key, Record]
Estimate = tuple[float, float, float]
"""A mean and its 95 % interval."""


def interval(values: Sequence[float]) -> Estimate:
    """The mean, and its 95 % interval; infinite for a single value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    quantile = _T_975[min(len(values) - 1, len(_T_975)) - 1]
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def ratio(rounds: Iterable[tuple[Sequence[float], Sequence[float]]]) -> Estimate:
    """The ratio of an arm's values to plain's, with a 95 % interval.

    Within a round the values of a turn are compared, and the median ratio counts. It is the only value of the round, as
    turns of the same two processes say nothing about other processes.

    Args:
        rounds: The values of an arm and of plain in each round, by turn.
    """
    logarithms = [
        statistics.median(math.log(ours / theirs) for ours, theirs in zip(*pair, strict=True)) for pair in rounds
    ]
    mean, low, high = interval(logarithms)
    return math.exp(mean), math.exp(low), math.exp(high)


def deviation(rounds: Iterable[tuple[Sequence[float], Sequence[float]]]) -> float:
    """The standard deviation of the ratios of single turns within a round; the median of all rounds."""
    logarithms = ([math.log(ours / theirs) for ours, theirs in zip(*pair, strict=True)] for pair in rounds)
    return statistics.median(statistics.stdev(found) if len(found) > 1 else 0.0 for found in logarithms)


def of_arm(records: Records, mode: str, arm: str) -> dict[int, Record]:
    """The records of an arm, by round."""
    return {n: record for (n, m, a), record in records.items() if (m, a) == (mode, arm)}


def pairs_of(records: Records, mode: str, arm: str, name: str) -> dict[int, tuple[Sequence[float], Sequence[float]]]:
    """The values of an arm and of plain in each round that has both."""
    plain = of_arm(records, mode, "plain")
    return {n: (record[name], plain[n][name]) for n, record in of_arm(records, mode, arm).items() if n in plain}


def own_pairs_of(records: Records, mode: str, arm: str, name: str) -> list[tuple[Sequence[float], Sequence[float]]]:
    """The values of an arm's processes in each round, with FIB and without it; rounds without such pairs have none."""
    found = (record.get("pairs", {}).get(name, ()) for record in of_arm(records, mode, arm).values())
    return [([ours for ours, _ in pairs], [theirs for _, theirs in pairs]) for pairs in found if pairs]
