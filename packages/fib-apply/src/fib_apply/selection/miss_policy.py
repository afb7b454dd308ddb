"""Miss policy: which ranking serves a key, recorded or not."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping

import attrs

from ..config import ApplyConfig, OnMiss
from ..key import ApplyKey
from .rankings import HardwareRankings, Ranking

_ROUNDING = 1e-9


@attrs.frozen
class _Group:
    """Keys that are equal in everything but the axes that may differ, sorted by the size of the first one of these."""

    sizes: list[int]
    keys: list[ApplyKey]


class NearestKeys:
    """An index of known keys, in which the closest one is found without looking at all.

    Args:
        known: The keys.
        bounds: The axes that may differ, each with the largest factor.
    """

    def __init__(self, known: Iterable[ApplyKey], bounds: Mapping[str, float]) -> None:
        self._bounds = bounds
        groups: dict[object, list[tuple[int, ApplyKey]]] = {}
        for key in known:
            fixed, size = self._split(key)
            groups.setdefault(fixed, []).append((size, key))
        self._groups = {}
        for fixed, pairs in groups.items():
            pairs.sort(key=lambda pair: (pair[0], pair[1].axes))
            self._groups[fixed] = _Group([size for size, _ in pairs], [key for _, key in pairs])

    def _split(self, key: ApplyKey) -> tuple[object, int]:
        """The part of a key that must be equal, and the size of the first axis that may differ; 0 if none may."""
        fixed = tuple((axis, None if axis in self._bounds else size) for axis, size in key.axes)
        return (fixed, key.feats), next((size for axis, size in key.axes if axis in self._bounds), 0)

    def find(self, key: ApplyKey) -> ApplyKey | None:
        """The closest known key within the bounds; None if there is none.

        The distance is the product of the factors between sizes. Of equally close keys the smaller one is taken.
        """
        fixed, size = self._split(key)
        group = self._groups.get(fixed)
        if group is None:
            return None
        farthest = math.log(next((self._bounds[axis] for axis, _ in key.axes if axis in self._bounds), 1.0)) + _ROUNDING
        best: tuple[float, tuple[tuple[str, int], ...]] | None = None
        found = None
        place = bisect.bisect_left(group.sizes, size)
        for places in (range(place, len(group.sizes)), range(place - 1, -1, -1)):
            for index in places:
                least = _log_factor(size, group.sizes[index])
                if least > farthest or (best is not None and least > best[0]):
                    break  # the others of this side are farther away
                other = group.keys[index]
                distance = _distance(key, other, self._bounds)
                if distance is not None and (best is None or (distance, other.axes) < best):
                    best, found = (distance, other.axes), other
        return found


def ranking_for(
    rankings: HardwareRankings | None, key: ApplyKey, config: ApplyConfig, nearest: NearestKeys | None = None
) -> Ranking | None:
    """The ranking that serves a key; None if only the fallback may.

    A recorded key is no miss, even if no solution was selected for it. If one solution serves all sizes of batch axes,
    a key is recorded at all these sizes.

    Args:
        rankings: By key.
        key: Of a call.
        config: States the policy.
        nearest: The index of `rankings`, to use it for several keys.
    """
    if rankings is None:
        return None
    key = rankings.key_of(key)
    if key in rankings.by_key:
        return rankings.by_key[key]
    if config.on_miss_policy is OnMiss.USE_DEF_BEST:
        return rankings.best
    if config.on_miss_policy is OnMiss.NEAREST:
        found = (nearest or NearestKeys(rankings.by_key, config.nearest)).find(key)
        return None if found is None else rankings.by_key[found]
    return None


def _log_factor(a: int, b: int) -> float:
    """The logarithm of the factor between two sizes."""
    if a == b:
        return 0.0
    return math.log(max(a, b) / min(a, b)) if min(a, b) > 0 else math.inf


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
