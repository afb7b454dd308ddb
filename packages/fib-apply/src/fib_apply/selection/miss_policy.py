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

    bounds: tuple[float, ...]
    """The largest factor of each axis that may differ."""
    farthest: float
    """The largest logarithm of a factor of the first axis, or a little more."""
    sizes: list[int]
    keys: list[tuple[tuple[int, ...], ApplyKey]]
    """The sizes that may differ, and the key."""


class NearestKeys:
    """An index of known keys, in which the closest one is found without looking at all.

    Args:
        known: The keys.
        bounds: The axes that may differ, each with the largest factor.
    """

    def __init__(self, known: Iterable[ApplyKey], bounds: Mapping[str, float]) -> None:
        self._bounds = dict(bounds)
        groups: dict[object, list[tuple[tuple[int, ...], ApplyKey]]] = {}
        for key in known:
            fixed, sizes = self._split(key)
            groups.setdefault(fixed, []).append((sizes, key))
        self._groups = {fixed: self._group(pairs) for fixed, pairs in groups.items()}

    def _group(self, pairs: list[tuple[tuple[int, ...], ApplyKey]]) -> _Group:
        pairs.sort(key=lambda pair: (pair[0][:1], pair[1].axes))
        bounds = tuple(self._bounds[axis] for axis, _ in pairs[0][1].axes if axis in self._bounds)
        farthest = math.log(bounds[0] if bounds else 1.0) + _ROUNDING
        return _Group(bounds, farthest, [sizes[0] if sizes else 0 for sizes, _ in pairs], pairs)

    def _split(self, key: ApplyKey) -> tuple[object, tuple[int, ...]]:
        """The part of a key that must be equal, and the sizes of the axes that may differ."""
        fixed: list[object] = [key.feats]
        sizes = []
        for axis, size in key.axes:
            if axis in self._bounds:
                sizes.append(size)
                fixed.append(axis)
            else:
                fixed.append((axis, size))
        return tuple(fixed), tuple(sizes)

    def find(self, key: ApplyKey) -> ApplyKey | None:
        """The closest known key within the bounds; None if there is none.

        The distance is the product of the factors between sizes. Of equally close keys the smaller one is taken.
        """
        fixed, sizes = self._split(key)
        group = self._groups.get(fixed)
        if group is None:
            return None
        if len(sizes) == 1:
            return self._closest_neighbour(group, sizes[0])
        size = sizes[0] if sizes else 0
        best: tuple[float, tuple[tuple[str, int], ...]] | None = None
        found = None
        place = bisect.bisect_left(group.sizes, size)
        for places in (range(place, len(group.sizes)), range(place - 1, -1, -1)):
            for index in places:
                least = _log_factor(size, group.sizes[index])
                if least > group.farthest or (best is not None and least > best[0]):
                    break  # the others of this side are farther away
                theirs, other = group.keys[index]
                distance = _distance(sizes, theirs, group.bounds)
                if distance is not None and (best is None or (distance, other.axes) < best):
                    best, found = (distance, other.axes), other
        return found

    def _closest_neighbour(self, group: _Group, size: int) -> ApplyKey | None:
        """The closest key if one axis may differ: the next smaller or the next larger one."""
        place = bisect.bisect_left(group.sizes, size)
        closest, found = group.bounds[0], None
        for (other,), key in group.keys[max(place - 1, 0) : place + 1]:
            factor = 1.0 if other == size else _factor(size, other)
            if factor < closest or (factor == closest and found is None):
                closest, found = factor, key
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
    return ranking_for_unrecorded(rankings, key, config, nearest)


def ranking_for_unrecorded(
    rankings: HardwareRankings, key: ApplyKey, config: ApplyConfig, nearest: NearestKeys | None = None
) -> Ranking | None:
    """The ranking that the policy chooses for a key without one; None if only the fallback may serve it."""
    if config.on_miss_policy is OnMiss.USE_DEF_BEST:
        return rankings.best if key.is_exact else None  # it was verified with contiguous, exact inputs
    if config.on_miss_policy is OnMiss.NEAREST:
        found = (nearest or NearestKeys(rankings.by_key, config.nearest)).find(key)
        return None if found is None else rankings.by_key[found]
    return None


def _log_factor(a: int, b: int) -> float:
    """The logarithm of the factor between two sizes."""
    if a == b:
        return 0.0
    factor = _factor(a, b)
    return math.inf if factor == math.inf else math.log(factor)


def _factor(a: int, b: int) -> float:
    """The factor between two sizes."""
    larger, smaller = (a, b) if a > b else (b, a)
    return larger / smaller if smaller > 0 else math.inf


def _distance(ours: Iterable[int], theirs: Iterable[int], bounds: Iterable[float]) -> float | None:
    """Sum of the logarithms of the factors between sizes; None if one exceeds its bound."""
    total = 0.0
    for size, other, bound in zip(ours, theirs, bounds, strict=True):
        if size != other:
            factor = _factor(size, other)
            if factor > bound:
                return None
            total += math.log(factor)
    return total
