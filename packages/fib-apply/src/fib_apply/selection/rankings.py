"""Rankings: the candidates of each key of a definition, in order of preference, and which ranking serves a key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import attrs
import msgspec

from ..config import ApplyConfig, OnMiss
from ..key import ApplyKey

SELECTION_SETTINGS = (
    *("max_atol", "max_rtol", "baseline", "margin", "require_speedup", "batch_invariant", "enabled", "exclude", "only"),
)
"""The settings that decide which solutions are selected."""
_ROUNDING = 1e-12
"""Tolerance of logarithms, so that latencies that differ by exactly the margin count as equal."""


def log_margin(margin: float) -> float:
    """The smallest difference of logarithms of latencies that differ by more than a margin."""
    return math.log1p(margin) + _ROUNDING


class Candidate(msgspec.Struct, frozen=True, array_like=True):
    """A solution that may serve a key."""

    solution: str
    latency_ms: float
    """Geometric mean over its workloads; if it serves all sizes of batch axes, the mean over the recorded ones."""
    interval_ms: tuple[float, float] | None = None
    """Likewise, if every workload has one."""
    has_setup: bool = False
    """Whether it needs a plan: plain calls cannot use it."""
    atol: float | None = None
    """The tolerance that it passed with; the loosest of several workloads."""
    rtol: float | None = None
    required_matched_ratio: float | None = None
    workloads: int = 1
    """Number of the key's workloads that it ran."""
    may_capture: bool = False
    """Whether it may be called while a CUDA graph is captured: replays were verified with changed integers."""
    may_pad: bool = False
    """Whether it may be called with padded indices: such calls were verified."""
    fallback_ms: float | None = None
    """The fallback's time on the same workloads; None if it was not recorded."""
    fallback_interval_ms: tuple[float, float] | None = None

    def is_faster_than_equivalent(self, equivalent: Candidate, margin: float) -> bool:
        """Whether it is faster, beyond uncertainty, than a solution that calls the same function as the fallback.

        If they ran different numbers of workloads, their times are compared as shares of the recorded fallback's.
        """
        one, other = self.latency_ms, equivalent.latency_ms
        if self.workloads != equivalent.workloads and self.fallback_ms and equivalent.fallback_ms:
            one, other = one / self.fallback_ms, other / equivalent.fallback_ms
        elif self.interval_ms is not None and equivalent.interval_ms is not None:
            return self.interval_ms[1] < equivalent.interval_ms[0]
        return math.log(other) - math.log(one) > log_margin(margin)


class Ranking(msgspec.Struct, frozen=True, array_like=True):
    """The candidates of one key, or of all keys, in order of preference."""

    candidates: tuple[Candidate, ...]
    reason: str
    """Reason for the first candidate, or for having none; one line."""
    left_out: tuple[tuple[str, str], ...] = ()
    """The other measured solutions, each with the reason."""
    fallback: str = ""
    """Timed function of the fallback: the reference or a baseline."""
    is_padded: bool = False
    """Whether it is of calls with padded indices, which not all candidates serve. The others stay among the candidates,
    because a fallback in another form may be one of them."""
    captured: tuple[Candidate, ...] | None = None
    """The candidates of calls that are captured, by their device latencies. None if traces have no call latencies of
    their own: then `candidates` serve such calls too."""

    def of_captured(self) -> Ranking:
        """The ranking for calls that are captured; the same one if no solution serves these."""
        if not self.captured:
            return self
        return msgspec.structs.replace(self, candidates=self.captured, captured=None)

    @property
    def plain_candidates(self) -> tuple[Candidate, ...]:
        """The candidates that serve calls without a plan."""
        return tuple([c for c in self.candidates if not c.has_setup and (c.may_pad or not self.is_padded)])

    @property
    def plain_problem(self) -> str:
        """Reason why no candidate serves calls without a plan, in a few words; for rankings without such a one."""
        if not self.candidates:
            return "nothing chosen"
        return "not verified with padded indices" if self.is_padded else "by plan only"

    @property
    def plain(self) -> Candidate | None:
        """The first candidate that serves calls without a plan."""
        return next(iter(self.plain_candidates), None)


@attrs.frozen
class HardwareRankings:
    """The rankings of one definition on one hardware."""

    hardware: str
    by_key: Mapping[ApplyKey, Ranking]
    best: Ranking | None = None
    """Over all keys; None if no solution qualified at all keys that it ran."""
    batch_axes: tuple[str, ...] = ()
    """The axes that keys leave out, because one solution serves all their sizes."""

    def key_of(self, key: ApplyKey) -> ApplyKey:
        """The key under which a call's key is recorded."""
        recorded = key.without_axes(self.batch_axes)
        return recorded if recorded.padded_axis is None else recorded.without_axes({recorded.padded_axis})


class NearestKeys:
    """Known keys, among which the closest one is found."""

    def __init__(self, known: Iterable[ApplyKey], bounds: Mapping[str, float]) -> None:
        self._bounds = dict(bounds)
        self._groups: dict[object, list[tuple[list[int], ApplyKey]]] = {}
        for key in known:
            fixed, sizes = self._split(key)
            self._groups.setdefault(fixed, []).append((sizes, key))

    def _split(self, key: ApplyKey) -> tuple[object, list[int]]:
        """The part of a key that must be equal, and the sizes of the axes that may differ."""
        fixed = tuple(axis if axis in self._bounds else (axis, size) for axis, size in key.axes)
        return (key.feats, fixed), [size for axis, size in key.axes if axis in self._bounds]

    def find(self, key: ApplyKey) -> ApplyKey | None:
        """The closest known key within the bounds; None if there is none.

        The distance is the product of the factors between sizes. Of equally close keys the smaller one is taken.
        """
        fixed, sizes = self._split(key)
        bounds = [self._bounds[axis] for axis, _ in key.axes if axis in self._bounds]
        found = [(_distance(sizes, theirs, bounds), other.axes, other) for theirs, other in self._groups.get(fixed, ())]
        distance, _, closest = min(found, key=lambda one: one[:2], default=(math.inf, (), None))
        return None if distance == math.inf else closest


def ranking_for(
    rankings: HardwareRankings | None, key: ApplyKey, config: ApplyConfig, nearest: NearestKeys | None = None
) -> Ranking | None:
    """The ranking that serves a key; None if only the fallback may.

    A recorded key is no miss, even if no solution was selected for it. If one solution serves all sizes of batch axes,
    a key is recorded at all these sizes.
    """
    if rankings is None:
        return None
    key = rankings.key_of(key)
    found = rankings.by_key.get(key)
    if found is not None:
        return found
    if config.on_miss_policy is OnMiss.USE_DEF_BEST:
        return rankings.best if key.is_exact else None  # it was verified with contiguous, exact inputs
    if config.on_miss_policy is OnMiss.NEAREST:
        closest = (nearest or NearestKeys(rankings.by_key, config.nearest)).find(key)
        return None if closest is None else rankings.by_key[closest]
    return None


def _distance(ours: Iterable[int], theirs: Iterable[int], bounds: Iterable[float]) -> float:
    """Sum of the logarithms of the factors between sizes; infinite if one exceeds its bound."""
    total = 0.0
    for size, other, bound in zip(ours, theirs, bounds, strict=True):
        if size != other:
            larger, smaller = (size, other) if size > other else (other, size)
            if smaller <= 0 or larger / smaller > bound:
                return math.inf
            total += math.log(larger / smaller)
    return total
