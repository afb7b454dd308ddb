"""What serves a key: what is recorded for it, or what the miss policy makes of others."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..choosing.rules import Choices, Ranking
from ..config import ApplyConfig, OnMiss
from ..key import ApplyKey


def ranking_for(choices: Choices | None, key: ApplyKey, config: ApplyConfig) -> Ranking | None:
    """The candidates for a key, or None if nothing is recorded that may serve it.

    A key that is recorded is no miss, even if nothing was chosen for it.
    """
    if choices is None:
        return None
    if key in choices.by_key:
        return choices.by_key[key]
    if config.on_miss_policy is OnMiss.USE_DEF_BEST:
        return choices.best
    if config.on_miss_policy is OnMiss.NEAREST:
        nearest = nearest_key(choices.by_key, key, config.nearest)
        return None if nearest is None else choices.by_key[nearest]
    return None


def nearest_key(known: Mapping[ApplyKey, Ranking], key: ApplyKey, bounds: Mapping[str, float]) -> ApplyKey | None:
    """The known key with the closest sizes, as factors; None if there is none within the bounds.

    Axes without a bound, and features, must be the same. Of equally close keys the smaller one is taken.
    """
    distances = {other: _distance(key, other, bounds) for other in known}
    return min(
        (other for other, distance in distances.items() if distance is not None),
        key=lambda other: (distances[other], other.axes),
        default=None,
    )


def _distance(key: ApplyKey, other: ApplyKey, bounds: Mapping[str, float]) -> float | None:
    """The sum of the logarithms of the factors between sizes; None if one is out of bounds."""
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
