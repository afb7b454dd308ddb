"""Comparison of two runs: pairs that became faster or slower, or stopped passing.

Two latencies differ if the medians differ by at least `min_change`, and their 95 % confidence intervals, where traces
have them, are disjoint: an interval describes one run, and between runs clocks and memory placement move medians by
more than that. CPU timings and latencies of different kinds (`Timing.kind`) are shown and not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

import attrs
from fib_schema import FibError, Trace, TraceSet, trace_facts
from fib_schema.trace_facts import CPU_TIMING, INTERPRETED, Timing, disqualifying_flags, latency_of, latest, timing_of

from ..flags import SYNTHESIZED
from .leaderboard import failure_text
from .ratios import UNKNOWN, Bounds, Ratio, mean_of, ratio_of, timing_bounds

DEFAULT_MIN_CHANGE = 0.02
_MEASURED_ALL_THE_SAME = frozenset({CPU_TIMING, INTERPRETED, trace_facts.QUICK})
"""Flags with which a solution counts as passing, although it is not ranked."""


class Change(StrEnum):
    """The result of comparing one workload."""

    BROKEN = "broken"
    """It passed before and fails after, or is no longer ranked."""
    SLOWER = "slower"
    SAME = "same"
    FASTER = "faster"
    FIXED = "fixed"
    """It failed before and passes after."""
    FAILING = "failing"
    """It failed before and after."""
    UNMEASURED = "unmeasured"
    """It passes, and the latencies cannot be compared: one is missing, of another kind or inputs, or of the CPU."""
    MISSING = "missing"
    """It was tried before only."""
    NEW = "new"
    """It was tried after only."""


WORSE = frozenset({Change.BROKEN, Change.SLOWER})
_COMPARED = frozenset({Change.SLOWER, Change.SAME, Change.FASTER})


@attrs.frozen
class NothingToCompare(FibError, ValueError):
    """Two runs without a common definition, solution, workload and device."""

    before: str
    after: str
    devices: Sequence[str]

    def __str__(self) -> str:
        first, second = (devices or "nothing" for devices in self.devices)
        text = f"{self.before} and {self.after} have no trace of the same solution, workload and device"
        return f"{text}; the first ran on {first}, the second on {second}"


@attrs.frozen
class Pair:
    """One workload before and after."""

    definition: str
    solution: str
    workload: str
    axes: Mapping[str, int]
    hardware: str
    verdict: Change
    before_ms: float | None
    after_ms: float | None
    before_bounds_ms: Bounds | None
    """The 95 % interval of the median, widened by the uncertainty of the clock; None where the trace has none."""
    after_bounds_ms: Bounds | None
    ratio: Ratio
    """After divided by before: below 1 is faster. Unknown where they were not compared."""
    reason: str
    """Reason for failing after, or before, or for not comparing latencies; empty otherwise."""


@attrs.frozen
class ChangeReport:
    """Two runs side by side."""

    before: str
    after: str
    counts: Mapping[str, int]
    ratio: Ratio
    """Geometric mean of after divided by before over compared latencies."""
    pairs: tuple[Pair, ...]
    """The worst changes first."""

    @property
    def is_worse(self) -> bool:
        """Whether a workload became slower or stopped passing."""
        return any(pair.verdict in WORSE for pair in self.pairs)


def compare(
    before: TraceSet, after: TraceSet, *, min_change: float = DEFAULT_MIN_CHANGE, allow_flags: Collection[str] = ()
) -> ChangeReport:
    """Compare two runs on the devices that both ran on; `NothingToCompare` if they have no pair in common.

    Latencies must differ by the share `min_change`; traces with `allow_flags` count all the same.
    """
    places = [str(run.root or "in memory") for run in (before, after)]
    old, new = (_sides(run, allow_flags) for run in (before, after))
    if not old.keys() & new.keys():
        devices = [", ".join(sorted({hardware for *_, hardware in sides})) for sides in (old, new)]
        raise NothingToCompare(places[0], places[1], devices)
    pairs = [_pair(key, old.get(key), new.get(key), min_change) for key in dict.fromkeys([*old, *new])]
    counts = Counter(pair.verdict for pair in pairs)
    return ChangeReport(
        before=places[0],
        after=places[1],
        counts={str(verdict): counts[verdict] for verdict in Change if counts[verdict]},
        ratio=mean_of(pair.ratio for pair in pairs),
        pairs=tuple(sorted(pairs, key=_severity)),
    )


_Key = tuple[str, str, str, str]
"""Definition, solution, workload and device."""


@attrs.frozen
class _Side:
    """One trace in terms of a comparison."""

    trace: Trace
    passes: bool
    """Whether it passed, without a flag that keeps it out of rankings, but for how it was timed."""
    blocking: tuple[str, ...]
    latency_ms: float | None
    timing: Timing | None
    reason: str
    """The reason why it does not pass."""

    @classmethod
    def of(cls, trace: Trace, allow_flags: Collection[str]) -> _Side:
        evaluation = trace.evaluation
        assert evaluation is not None  # `latest` has evaluated traces only
        blocking = disqualifying_flags(evaluation, allow_flags)
        passes = trace.is_successful() and set(blocking) <= _MEASURED_ALL_THE_SAME
        unranked = f"unranked, flagged: {', '.join(blocking)}"
        reason = "" if passes else unranked if trace.is_successful() else failure_text(evaluation)
        timing = None if evaluation.performance is None else timing_of(evaluation.performance)
        return cls(trace, passes, blocking, latency_of(trace, (*allow_flags, CPU_TIMING)), timing, reason)

    @property
    def bounds_ms(self) -> Bounds | None:
        """The bounds of the latency, where the trace states an interval."""
        return None if self.timing is None or self.timing.interval_ms is None else timing_bounds(self.timing)

    @property
    def is_synthesized(self) -> bool:
        """Whether blobs were missing and inputs were made."""
        return self.trace.evaluation is not None and SYNTHESIZED in self.trace.evaluation.flags


def _sides(run: TraceSet, allow_flags: Collection[str]) -> dict[_Key, _Side]:
    return {
        (definition, solution, uuid, hardware): _Side.of(trace, allow_flags)
        for definition in run.traces
        for hardware, workloads in latest(run.counting_traces(definition)).items()
        for uuid, group in workloads.items()
        for solution, trace in group.items()
    }


def _pair(key: _Key, before: _Side | None, after: _Side | None, min_change: float) -> Pair:
    side = before or after
    assert side is not None
    verdict, reason = _verdict(before, after, min_change)
    is_compared = before is not None and after is not None and verdict in _COMPARED
    definition, solution, workload, hardware = key
    return Pair(
        definition=definition,
        solution=solution,
        workload=workload,
        axes=dict(side.trace.workload.axes),
        hardware=hardware,
        verdict=verdict,
        before_ms=before.latency_ms if before else None,
        after_ms=after.latency_ms if after else None,
        before_bounds_ms=before.bounds_ms if before else None,
        after_bounds_ms=after.bounds_ms if after else None,
        ratio=ratio_of(after.timing, before.timing) if before and after and is_compared else UNKNOWN,
        reason=reason,
    )


def _verdict(before: _Side | None, after: _Side | None, min_change: float) -> tuple[Change, str]:
    """The change, and why a side fails or latencies are not compared."""
    if before is None or after is None:
        change = Change.NEW if before is None else Change.MISSING
        return change, before.reason if before else after.reason if after else ""
    if not before.passes or not after.passes:
        change = Change.BROKEN if before.passes else Change.FIXED if after.passes else Change.FAILING
        return change, after.reason or before.reason
    old, new = before.latency_ms, after.latency_ms
    reason = ", ".join(dict.fromkeys((*before.blocking, *after.blocking))) or _difference(before, after)
    if old is None or new is None or reason:
        return Change.UNMEASURED, reason
    return (Change.SAME if _overlap(before.bounds_ms, after.bounds_ms) else _by_share(old, new, min_change)), ""


def _overlap(one: Bounds | None, other: Bounds | None) -> bool:
    return one is not None and other is not None and one[0] <= other[1] and other[0] <= one[1]


def _by_share(old: float, new: float, share: float) -> Change:
    if new > old * (1 + share):
        return Change.SLOWER
    return Change.FASTER if old > new * (1 + share) else Change.SAME


def _difference(before: _Side, after: _Side) -> str:
    if before.timing is not None and after.timing is not None and not before.timing.is_comparable(after.timing):
        return f"latencies of different kinds: {before.timing.kind} -> {after.timing.kind}"
    if before.is_synthesized != after.is_synthesized:
        return "only one run had the recorded inputs"
    return ""


def _severity(pair: Pair) -> tuple[int, float]:
    """The sort key of a pair: its verdict in the order of `Change`, then the size of the change."""
    change = pair.after_ms / pair.before_ms if pair.after_ms and pair.before_ms else 1.0
    return list(Change).index(pair.verdict), -max(change, 1 / change)
