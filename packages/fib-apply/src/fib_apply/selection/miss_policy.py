"""Miss policy: which ranking serves a key, recorded or not."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..config import ApplyConfig, OnMiss
from ..key import ApplyKey
from .rules import HardwareRankings, Ranking


def ranking_for(rankings: HardwareRankings | None, key: ApplyKey, config: ApplyConfig) -> Ranking | None:
    """The ranking that serves a key; None if only the fallback may.

    A recorded key is no miss, even if no solution was selected for it.
    """
    if rankings is None:
        return None
    if key in rankings.by_key:
        return rankings.by_key[key]
    if config.on_miss_policy is OnMiss.USE_DEF_BEST:
        return rankings.best
    if config.on_miss_policy is OnMiss.NEAREST:
        nearest = nearest_key(rankings.by_key, key, config.nearest)
        return None if nearest is None else rankings.by_key[nearest]
    return None


def nearest_key(known: Mapping[ApplyKey, Ranking], key: ApplyKey, bounds: Mapping[str, float]) -> ApplyKey | None:
    """The known key with the closest sizes; None if there is none within the bounds.

    The distance is the product of the factors between sizes. Axes without a bound, and features, must be equal. Of
    equally close keys the smaller one is taken.
    """
    distances = {other: _distance(key, other, bounds) for other in known}
    return min(
        (other for other, distance in distances.items() if distance is not None),
        key=lambda other: (distances[other], other.axes),
        default=None,
    )


def _distance(key: ApplyKey, other: ApplyKey, bounds: Mapping[str, float]) -> float | None:
    """Sum of the logarithms of the factors between sizes; None if one exceeds its bound."""
    ours, theirs = dict(key.axes), dict(other.axes)
    if ours.keys() != theirs.keys() or key.feats != other.feats:
        return None
    total = 0.0
    for axis, size in ours.items():
        if size == theirs[axis]:
            continue
        factor = max(size, theirs[axis]) / min(size, theirs[axis]) if min(size, theirs[axis]) > 0 else math.inf
        if factor > bounds.get(axis, 1.0):
            return None
        total += math.log(factor)
    return total
