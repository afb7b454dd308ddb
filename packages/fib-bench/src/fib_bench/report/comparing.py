"""Comparison of two runs or two solutions: pairs that became faster or slower, or stopped passing.

Two latencies differ if the medians differ by at least `min_change`, and their 95 % confidence intervals, where traces
have them, are disjoint: an interval describes one run, and between runs clocks and memory placement move medians by
more than that. CPU timings and latencies of different kinds (`Timing.kind`) are shown and not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

import attrs
from fib_schema import FibError, Trace, TraceSet, UnknownName
from fib_schema.trace_facts import (
    CPU_TIMING,
    INTERPRETED,
    Timing,
    disqualifying_flags,
    latency_of,
    latest,
    timing_of,
)

from ..flags import SYNTHESIZED
from .leaderboard import failure_text
from .ratios import DEFAULT_METHOD, UNKNOWN, Bounds, Ratio, mean_of, ratio_of, timing_bounds

DEFAULT_MIN_CHANGE = 0.02
_MEASURED_ALL_THE_SAME = frozenset({CPU_TIMING, INTERPRETED})
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
    """It passes, and the latencies cannot be compared: one is missing, or they are of different kinds."""
    UNRANKED = "unranked"
    """It passes, and was timed on the CPU."""
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
    remedy: str

    def __str__(self) -> str:
        return f"{self.before} and {self.after} have no trace of the same thing; {self.remedy}"


@attrs.frozen
class Run:
    """One side of a comparison."""

    trace_set: TraceSet
    name: str
    """The name in messages."""
    solution: str | None = None
    """Only this solution; it is compared with that of the other side even if their names differ."""


@attrs.frozen
class Pair:
    """One workload before and after."""

    definition: str
    solution: str
    """On the side before, or after if it is new."""
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
    timed_by: str
    """Timing methods before and after; empty for ``handshake`` alone."""
    reason: str
    """Reason for failing after, or before, or for not comparing latencies; empty otherwise."""


@attrs.frozen
class ChangeReport:
    """Two runs, or two solutions, side by side."""

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

    @property
    def missing(self) -> int:
        """Number of workloads that were tried before only."""
        return self.counts.get(Change.MISSING, 0)


def compare(
    before: Run,
    after: Run,
    definitions: Collection[str] | None = None,
    *,
    min_change: float = DEFAULT_MIN_CHANGE,
    allow_flags: Collection[str] = (),
) -> ChangeReport:
    """Compare two runs, or two solutions, on the devices that both ran on.

    Latencies must differ by the share `min_change`; traces with `allow_flags` count all the same.

    Raises:
        UnknownName: A definition or a solution is in neither set.
        NothingToCompare: The two have no definition, solution, workload and device in common.
    """
    _check_definitions(before, after, definitions)
    old, new = (_sides(run, allow_flags, definitions) for run in (before, after))
    for run, sides in ((before, old), (after, new)):
        _check_solution(run, sides)
    if not old.keys() & new.keys():
        raise NothingToCompare(before.name, after.name, _remedy(old.values(), new.values(), before))
    pairs = [_pair(old.get(key), new.get(key), min_change) for key in dict.fromkeys([*old, *new])]
    counts = Counter(pair.verdict for pair in pairs)
    return ChangeReport(
        before=before.name,
        after=after.name,
        counts={str(verdict): counts[verdict] for verdict in Change if counts[verdict]},
        ratio=mean_of(pair.ratio for pair in pairs),
        pairs=tuple(sorted(pairs, key=_severity)),
    )


_Key = tuple[str, str, str, str]


@attrs.frozen
class _Side:
    """One trace in terms of a comparison."""

    trace: Trace
    hardware: str
    passes: bool
    """Whether it passed, without a flag other than CPU timing that keeps it out of rankings."""
    blocking: tuple[str, ...]
    """Flags that keep it out of rankings."""
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
        hardware = evaluation.environment.hardware
        return cls(trace, hardware, passes, blocking, latency_of(trace, (*allow_flags, CPU_TIMING)), timing, reason)

    @property
    def bounds_ms(self) -> Bounds | None:
        """The bounds of the latency, where the trace states an interval."""
        return None if self.timing is None or self.timing.interval_ms is None else timing_bounds(self.timing)

    @property
    def method(self) -> str:
        """The timing method; empty if it is unknown."""
        return "" if self.timing is None else self.timing.method or ""

    @property
    def is_synthesized(self) -> bool:
        """Whether blobs were missing and inputs were made."""
        return self.trace.evaluation is not None and SYNTHESIZED in self.trace.evaluation.flags


def _sides(run: Run, allow_flags: Collection[str], definitions: Collection[str] | None) -> dict[_Key, _Side]:
    """The latest traces by comparison key."""
    found: dict[_Key, _Side] = {}
    for definition in [name for name in run.trace_set.traces if definitions is None or name in definitions]:
        for hardware, workloads in latest(run.trace_set.counting_traces(definition)).items():
            for uuid, group in workloads.items():
                for solution, trace in group.items():
                    if run.solution in (None, solution):
                        name = solution if run.solution is None else ""
                        found[definition, name, uuid, hardware] = _Side.of(trace, allow_flags)
    return found


def _pair(before: _Side | None, after: _Side | None, min_change: float) -> Pair:
    side = before or after
    assert side is not None
    verdict, reason = _verdict(before, after, min_change)
    is_compared = before is not None and after is not None and verdict in _COMPARED
    return Pair(
        definition=side.trace.definition,
        solution=str(side.trace.solution),
        workload=side.trace.workload.uuid,
        axes=dict(side.trace.workload.axes),
        hardware=side.hardware,
        verdict=verdict,
        before_ms=before.latency_ms if before else None,
        after_ms=after.latency_ms if after else None,
        before_bounds_ms=before.bounds_ms if before else None,
        after_bounds_ms=after.bounds_ms if after else None,
        ratio=ratio_of(after.timing, before.timing) if before and after and is_compared else UNKNOWN,
        timed_by=_timed_by([each.method for each in (before, after) if each]),
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
    flags = dict.fromkeys((*before.blocking, *after.blocking))
    if CPU_TIMING in flags:
        return Change.UNRANKED, ", ".join(flags)
    old, new = before.latency_ms, after.latency_ms
    difference = _difference(before, after)
    if old is None or new is None or difference:
        return Change.UNMEASURED, ", ".join(flags) or difference
    return (Change.SAME if _overlap(before.bounds_ms, after.bounds_ms) else _by_share(old, new, min_change)), ""


def _overlap(one: Bounds | None, other: Bounds | None) -> bool:
    return one is not None and other is not None and one[0] <= other[1] and other[0] <= one[1]


def _by_share(old: float, new: float, share: float) -> Change:
    if new > old * (1 + share):
        return Change.SLOWER
    return Change.FASTER if old > new * (1 + share) else Change.SAME


def _difference(before: _Side, after: _Side) -> str:
    """Reason that two latencies are of different things; empty if there is none."""
    if before.timing is not None and after.timing is not None and not before.timing.is_comparable(after.timing):
        return f"latencies of different kinds: {before.timing.kind} -> {after.timing.kind}"
    if before.is_synthesized != after.is_synthesized:
        return "only one run had the recorded inputs"
    return ""


def _timed_by(methods: Sequence[str]) -> str:
    """The timing methods before and after, once if they are the same."""
    if len(set(methods)) == 1:
        return "" if methods[0] == DEFAULT_METHOD else methods[0]
    return " -> ".join(method or "?" for method in methods)


def _severity(pair: Pair) -> tuple[int, float]:
    """The sort key of a pair: its verdict in the order of `Change`, then the size of the change."""
    change = pair.after_ms / pair.before_ms if pair.after_ms and pair.before_ms else 1.0
    return list(Change).index(pair.verdict), -max(change, 1 / change)


def _check_definitions(before: Run, after: Run, definitions: Collection[str] | None) -> None:
    known = tuple(dict.fromkeys(name for run in (before, after) for name in run.trace_set.definitions))
    for name in definitions or ():
        if name not in known:
            raise UnknownName("definition", name, known)


def _check_solution(run: Run, sides: Mapping[_Key, _Side]) -> None:
    known = run.trace_set.solution_names()
    if run.solution is not None and run.solution not in known and not sides:
        raise UnknownName("solution", run.solution, known)


def _remedy(old: Iterable[_Side], new: Iterable[_Side], before: Run) -> str:
    devices = [", ".join(sorted({side.hardware for side in group})) or "nowhere" for group in (old, new)]
    if devices[0] != devices[1]:
        return f"the first ran on {devices[0]}, the second on {devices[1]}"
    if before.solution is None:
        return "compare runs of the same solutions, or two solutions with --solutions"
    return "run both solutions on the same workloads"
