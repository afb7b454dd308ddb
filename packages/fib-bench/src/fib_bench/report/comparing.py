"""Comparison of two runs or two solutions: pairs that became faster or slower, or stopped passing.

Two latencies differ if their 95 % confidence intervals are disjoint and the medians differ by at least
`min_change`: an interval describes one run, and between runs clocks and memory placement move medians
by more than that. Where a trace has no interval, latencies must differ by `margin`. CPU timings and
latencies of which only one includes time of the host are shown and not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

import attrs
from fib_schema import FibError, Trace, TraceSet, UnknownName
from fib_schema.trace_facts import (
    CPU_TIMING,
    INTERPRETED,
    Timing,
    counting_traces,
    disqualifying_flags,
    latency_of,
    latest,
    timing_of,
)

from ..flags import SYNTHESIZED
from .leaderboard import failure_text
from .ratios import DEFAULT_METHOD, HOST_METHODS, UNKNOWN, Bounds, Ratio, mean_of, ratio_of, timing_bounds

DEFAULT_MARGIN = 0.02
DEFAULT_MIN_CHANGE = 0.01


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
    """It passes, and the latencies cannot be compared: one is missing, or only one includes time of the host."""
    UNRANKED = "unranked"
    """It passes, and was timed on the CPU."""
    MISSING = "missing"
    """It was tried before only."""
    NEW = "new"
    """It was tried after only."""


WORSE = frozenset({Change.BROKEN, Change.SLOWER})


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


@attrs.frozen(kw_only=True)
class Thresholds:
    """The rule that decides whether two latencies differ."""

    margin: float = DEFAULT_MARGIN
    """The share by which they must differ where there are no intervals."""
    min_change: float = DEFAULT_MIN_CHANGE
    """The share by which they must differ where there are intervals."""
    allow_flags: Collection[str] = ()
    any_hardware: bool = False
    """Whether to compare traces of different devices; the last trace of a workload counts."""


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
    ratio: float | None
    """After divided by before: below 1 is faster. None where it is not a number, see `ratio_text`."""
    ratio_interval: Bounds | None
    ratio_text: str
    """The number with its interval, or ``noise``, ``imprecise``, ``-``."""
    decided_by: str
    """``intervals``, ``margin``, or nothing where no latencies were compared."""
    timed_by: str
    """Timing methods before and after; empty for ``linked`` alone."""
    reason: str
    """Reason for failing after, or before, or for not comparing latencies; empty otherwise."""


@attrs.frozen
class ChangeReport:
    """Two runs, or two solutions, side by side."""

    before: str
    after: str
    counts: Mapping[str, int]
    ratio: float | None
    """Geometric mean of after divided by before over compared latencies; None where it is not a number."""
    ratio_text: str
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
    before: Run, after: Run, rule: Thresholds | None = None, definitions: Collection[str] | None = None
) -> ChangeReport:
    """Compare two runs, or two solutions.

    Args:
        before: The run to compare with.
        after: The run to judge.
        rule: When latencies differ.
        definitions: Only these.

    Raises:
        UnknownName: A definition or a solution is in neither set.
        NothingToCompare: The two have no definition, solution, workload and device in common.
    """
    rule = rule or Thresholds()
    _check_definitions(before, after, definitions)
    old, new = _traces(before, rule, definitions), _traces(after, rule, definitions)
    for run, traces in ((before, old), (after, new)):
        _check_solution(run, traces)
    if not old.keys() & new.keys():
        raise NothingToCompare(before.name, after.name, _remedy(old.values(), new.values(), before, rule))
    pairs = [_pair(old.get(key), new.get(key), rule) for key in dict.fromkeys([*old, *new])]
    pairs.sort(key=_severity)
    mean = mean_of(
        [_ratio(old[key], new[key]) for key in old.keys() & new.keys() if _is_compared(old[key], new[key], rule)]
    )
    counts = Counter(pair.verdict for pair in pairs)
    return ChangeReport(
        before=before.name,
        after=after.name,
        counts={str(verdict): counts[verdict] for verdict in Change if counts[verdict]},
        ratio=mean.value,
        ratio_text=mean.text,
        pairs=tuple(pairs),
    )


_Key = tuple[str, str, str, str]


def _traces(run: Run, rule: Thresholds, definitions: Collection[str] | None) -> dict[_Key, Trace]:
    """The latest traces by comparison key."""
    found: dict[_Key, Trace] = {}
    for definition in run.trace_set.traces:
        if definitions is not None and definition not in definitions:
            continue
        for hardware, workloads in latest(counting_traces(run.trace_set, definition)).items():
            device = "" if rule.any_hardware else hardware
            for uuid, group in workloads.items():
                for solution, trace in group.items():
                    if run.solution in (None, solution):
                        found[definition, solution if run.solution is None else "", uuid, device] = trace
    return found


def _pair(before: Trace | None, after: Trace | None, rule: Thresholds) -> Pair:
    trace = before or after
    assert trace is not None
    old, new = (latency_of(each, (*rule.allow_flags, CPU_TIMING)) for each in (before, after))
    verdict, decided_by = _verdict(before, after, rule)
    ratio = _ratio(before, after) if decided_by else UNKNOWN
    return Pair(
        definition=trace.definition,
        solution=str(trace.solution),
        workload=trace.workload.uuid,
        axes=dict(trace.workload.axes),
        hardware=_hardware(trace),
        verdict=verdict,
        before_ms=old,
        after_ms=new,
        before_bounds_ms=None if before is None else _bounds_ms(before),
        after_bounds_ms=None if after is None else _bounds_ms(after),
        ratio=ratio.value,
        ratio_interval=ratio.interval,
        ratio_text=ratio.text,
        decided_by=decided_by,
        timed_by=_timed_by(before, after),
        reason=_reason(before, after, verdict, rule),
    )


def _verdict(before: Trace | None, after: Trace | None, rule: Thresholds) -> tuple[Change, str]:
    if before is None or after is None:
        return (Change.NEW if before is None else Change.MISSING), ""
    passed, passes = _passes(before, rule), _passes(after, rule)
    if not passed or not passes:
        return {(True, False): Change.BROKEN, (False, True): Change.FIXED}.get((passed, passes), Change.FAILING), ""
    if any(CPU_TIMING in _blocking(trace, rule) for trace in (before, after)):
        return Change.UNRANKED, ""
    return _changed(before, after, rule)


def _changed(before: Trace, after: Trace, rule: Thresholds) -> tuple[Change, str]:
    """Whether the latency changed, and the criterion of the decision."""
    old, new = latency_of(before, rule.allow_flags), latency_of(after, rule.allow_flags)
    if old is None or new is None or _difference(before, after):
        return Change.UNMEASURED, ""
    old_bounds, new_bounds = _bounds_ms(before), _bounds_ms(after)
    if old_bounds is None or new_bounds is None:
        return _by_share(old, new, rule.margin), "margin"
    is_apart = old_bounds[1] < new_bounds[0] or new_bounds[1] < old_bounds[0]
    return (_by_share(old, new, rule.min_change) if is_apart else Change.SAME), "intervals"


def _by_share(old: float, new: float, share: float) -> Change:
    if new > old * (1 + share):
        return Change.SLOWER
    return Change.FASTER if old > new * (1 + share) else Change.SAME


def _ratio(before: Trace | None, after: Trace | None) -> Ratio:
    if before is None or after is None:
        return UNKNOWN
    return ratio_of(_timing(after), _timing(before))


def _is_compared(before: Trace, after: Trace, rule: Thresholds) -> bool:
    return bool(_verdict(before, after, rule)[1])


def _passes(trace: Trace, rule: Thresholds) -> bool:
    """Whether a trace passed, without a flag other than CPU timing that keeps it out of rankings."""
    assert trace.evaluation is not None
    allowed = (*rule.allow_flags, CPU_TIMING, INTERPRETED)
    return trace.is_successful() and not disqualifying_flags(trace.evaluation, allowed)


def _blocking(trace: Trace, rule: Thresholds) -> tuple[str, ...]:
    assert trace.evaluation is not None
    return disqualifying_flags(trace.evaluation, rule.allow_flags)


def _timing(trace: Trace) -> Timing | None:
    assert trace.evaluation is not None
    return None if trace.evaluation.performance is None else timing_of(trace.evaluation.performance)


def _bounds_ms(trace: Trace) -> Bounds | None:
    timing = _timing(trace)
    return None if timing is None or timing.interval_ms is None else timing_bounds(timing)


def _difference(before: Trace, after: Trace) -> str:
    """Reason that two latencies are of different things; empty if there is none."""
    if _includes_host(before) != _includes_host(after):
        return "only one latency includes time of the host"
    if _is_synthesized(before) != _is_synthesized(after):
        return "only one run had the recorded inputs"
    return ""


def _is_synthesized(trace: Trace) -> bool:
    return trace.evaluation is not None and SYNTHESIZED in trace.evaluation.flags


def _includes_host(trace: Trace) -> bool:
    timing = _timing(trace)
    return timing is not None and timing.method in HOST_METHODS


def _timed_by(before: Trace | None, after: Trace | None) -> str:
    """The timing methods before and after, once if they are the same."""
    methods = [_method_name(trace) for trace in (before, after) if trace is not None]
    if len(set(methods)) == 1:
        return "" if methods[0] == DEFAULT_METHOD else methods[0]
    return " -> ".join(method or "?" for method in methods)


def _method_name(trace: Trace) -> str:
    timing = _timing(trace)
    return "" if timing is None else timing.method or ""


def _hardware(trace: Trace) -> str:
    assert trace.evaluation is not None
    return trace.evaluation.environment.hardware


def _reason(before: Trace | None, after: Trace | None, verdict: Change, rule: Thresholds) -> str:
    """Reason for a side's failure, or for not comparing latencies."""
    if before is not None and after is not None and verdict in (Change.UNRANKED, Change.UNMEASURED):
        if flags := dict.fromkeys((*_blocking(before, rule), *_blocking(after, rule))):
            return ", ".join(flags)
        return _difference(before, after)
    trace = after if after is not None and not _passes(after, rule) else before
    if trace is None or _passes(trace, rule) or trace.evaluation is None:
        return ""
    if trace.is_successful():
        return f"unranked, flagged: {', '.join(_blocking(trace, rule))}"
    return failure_text(trace.evaluation)


def _severity(pair: Pair) -> tuple[int, float]:
    """The sort key of a pair: its verdict in the order of `Change`, then the size of the change."""
    change = pair.after_ms / pair.before_ms if pair.after_ms and pair.before_ms else 1.0
    return list(Change).index(pair.verdict), -max(change, 1 / change)


def _check_definitions(before: Run, after: Run, definitions: Collection[str] | None) -> None:
    known = tuple(dict.fromkeys(name for run in (before, after) for name in run.trace_set.definitions))
    for name in definitions or ():
        if name not in known:
            raise UnknownName("definition", name, known)


def _check_solution(run: Run, traces: Mapping[_Key, Trace]) -> None:
    known = run.trace_set.solution_names()
    if run.solution is not None and run.solution not in known and not traces:
        raise UnknownName("solution", run.solution, known)


def _remedy(old: Iterable[Trace], new: Iterable[Trace], before: Run, rule: Thresholds) -> str:
    devices = [", ".join(sorted({_hardware(trace) for trace in group})) or "nowhere" for group in (old, new)]
    if devices[0] != devices[1] and not rule.any_hardware:
        return f"the first ran on {devices[0]}, the second on {devices[1]} (--any-hardware compares them all the same)"
    if before.solution is None:
        return "compare runs of the same solutions, or two solutions with --solutions"
    return "run both solutions on the same workloads"
