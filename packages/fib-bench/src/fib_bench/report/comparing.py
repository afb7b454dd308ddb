"""Compares two runs, or two solutions: what became faster or slower, and what stopped passing.

Two latencies differ if their 95 % confidence intervals are apart, and the medians by `min_change` at
least: an interval speaks of one run, and between runs clocks and the placement of memory move medians
by more than that. Where a trace has no interval, latencies must differ by `margin`.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

import attrs
from fib_schema import FibError, Trace, TraceSet, UnknownName

from .readings import interval_of, latency_of
from .standings import complaint, latest

DEFAULT_MARGIN = 0.02
DEFAULT_MIN_CHANGE = 0.01


class Verdict(StrEnum):
    """What became of one workload."""

    BROKEN = "broken"
    """It passed before and does not any more, or is not ranked any more."""
    SLOWER = "slower"
    SAME = "same"
    FASTER = "faster"
    FIXED = "fixed"
    """It passes now."""
    FAILING = "failing"
    """It passed neither before nor after."""
    UNMEASURED = "unmeasured"
    """It passes, and a latency is no positive number."""
    MISSING = "missing"
    """It was tried before only."""
    NEW = "new"
    """It was tried after only."""


WORSE = frozenset({Verdict.BROKEN, Verdict.SLOWER})


@attrs.frozen
class NothingToCompare(FibError, ValueError):
    """Two sides that have nothing in common."""

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
    """What to call it."""
    solution: str | None = None
    """Only this solution, which is compared whatever the other side's is called."""


@attrs.frozen(kw_only=True)
class Rule:
    """When two latencies differ."""

    margin: float = DEFAULT_MARGIN
    """By which share, where there are no intervals."""
    min_change: float = DEFAULT_MIN_CHANGE
    """By which share at least, where there are."""
    allow_flags: Collection[str] = ()
    any_hardware: bool = False
    """Whether to compare what ran on different devices; of several the last trace counts."""


@attrs.frozen
class Pair:
    """One workload before and after."""

    definition: str
    solution: str
    """On the side before, or after if it is new."""
    workload: str
    axes: Mapping[str, int]
    hardware: str
    verdict: Verdict
    before_ms: float | None
    after_ms: float | None
    ratio: float | None
    """After divided by before: below 1 is faster."""
    decided_by: str
    """``intervals``, ``margin``, or nothing where no latencies were compared."""
    reason: str
    """Why it does not pass after, or before; empty if it passes."""


@attrs.frozen
class Comparison:
    """Two runs, or two solutions, side by side."""

    before: str
    after: str
    counts: Mapping[str, int]
    ratio: float | None
    """Geometric mean of after divided by before, where both pass."""
    pairs: tuple[Pair, ...]
    """What became worst first."""

    @property
    def is_worse(self) -> bool:
        """Whether something became slower or stopped passing."""
        return any(pair.verdict in WORSE for pair in self.pairs)

    @property
    def missing(self) -> int:
        """How many workloads were tried before only."""
        return self.counts.get(Verdict.MISSING, 0)


def compare(
    before: Run, after: Run, rule: Rule | None = None, definitions: Collection[str] | None = None
) -> Comparison:
    """Compare two runs, or two solutions.

    Args:
        before: What was.
        after: What is.
        rule: When latencies differ.
        definitions: Only these.

    Raises:
        UnknownName: A definition or a solution is in neither set.
        NothingToCompare: The two have no definition, solution, workload and device in common.
    """
    rule = rule or Rule()
    _check_definitions(before, after, definitions)
    old, new = _traces(before, rule, definitions), _traces(after, rule, definitions)
    for run, traces in ((before, old), (after, new)):
        _check_solution(run, traces)
    if not old.keys() & new.keys():
        raise NothingToCompare(before.name, after.name, _remedy(old.values(), new.values(), before, rule))
    pairs = [_pair(old.get(key), new.get(key), rule) for key in dict.fromkeys([*old, *new])]
    pairs.sort(key=_badness)
    ratios = [pair.ratio for pair in pairs if pair.ratio is not None]
    counts = Counter(pair.verdict for pair in pairs)
    return Comparison(
        before=before.name,
        after=after.name,
        counts={str(verdict): counts[verdict] for verdict in Verdict if counts[verdict]},
        ratio=statistics.geometric_mean(ratios) if ratios else None,
        pairs=tuple(pairs),
    )


_Key = tuple[str, str, str, str]


def _traces(run: Run, rule: Rule, definitions: Collection[str] | None) -> dict[_Key, Trace]:
    """The latest traces, by what makes two of them comparable."""
    found: dict[_Key, Trace] = {}
    for definition, traces in run.trace_set.traces.items():
        if definitions is not None and definition not in definitions:
            continue
        for trace in latest(traces):
            if run.solution in (None, trace.solution):
                name = str(trace.solution) if run.solution is None else ""
                device = "" if rule.any_hardware else _hardware(trace)
                found[definition, name, trace.workload.uuid, device] = trace
    return found


def _pair(before: Trace | None, after: Trace | None, rule: Rule) -> Pair:
    trace = before or after
    assert trace is not None
    old, new = latency_of(before, rule.allow_flags), latency_of(after, rule.allow_flags)
    verdict, decided_by = _verdict(before, after, rule)
    broken = after if after is not None and not _passes(after, rule) else before
    return Pair(
        definition=trace.definition,
        solution=str(trace.solution),
        workload=trace.workload.uuid,
        axes=dict(trace.workload.axes),
        hardware=_hardware(trace),
        verdict=verdict,
        before_ms=old,
        after_ms=new,
        ratio=new / old if new is not None and old is not None else None,
        decided_by=decided_by,
        reason=_reason(broken, rule),
    )


def _verdict(before: Trace | None, after: Trace | None, rule: Rule) -> tuple[Verdict, str]:
    if before is None or after is None:
        return (Verdict.NEW if before is None else Verdict.MISSING), ""
    passed, passes = _passes(before, rule), _passes(after, rule)
    if not passed or not passes:
        return {(True, False): Verdict.BROKEN, (False, True): Verdict.FIXED}.get((passed, passes), Verdict.FAILING), ""
    return _changed(before, after, rule)


def _changed(before: Trace, after: Trace, rule: Rule) -> tuple[Verdict, str]:
    """Whether a latency changed, and how that was decided."""
    old, new = latency_of(before, rule.allow_flags), latency_of(after, rule.allow_flags)
    if old is None or new is None:
        return Verdict.UNMEASURED, ""
    was, is_now = _interval(before), _interval(after)
    if was is None or is_now is None:
        return _by_share(old, new, rule.margin), "margin"
    is_apart = was[1] < is_now[0] or is_now[1] < was[0]
    return (_by_share(old, new, rule.min_change) if is_apart else Verdict.SAME), "intervals"


def _by_share(old: float, new: float, share: float) -> Verdict:
    if new > old * (1 + share):
        return Verdict.SLOWER
    return Verdict.FASTER if old > new * (1 + share) else Verdict.SAME


def _passes(trace: Trace, rule: Rule) -> bool:
    assert trace.evaluation is not None
    return trace.is_successful() and trace.evaluation.is_ranked(rule.allow_flags)


def _interval(trace: Trace) -> tuple[float, float] | None:
    assert trace.evaluation is not None
    assert trace.evaluation.performance is not None
    return interval_of(trace.evaluation.performance)


def _hardware(trace: Trace) -> str:
    assert trace.evaluation is not None
    return trace.evaluation.environment.hardware


def _reason(trace: Trace | None, rule: Rule) -> str:
    if trace is None or _passes(trace, rule) or trace.evaluation is None:
        return ""
    if trace.is_successful():
        return f"not ranked, for it is flagged: {', '.join(trace.evaluation.flags)}"
    return f"{trace.evaluation.status}: {complaint(trace.evaluation)}"


def _badness(pair: Pair) -> tuple[int, float]:
    """Verdicts in their order; of slower ones the slowest, of faster ones the fastest first."""
    change = pair.ratio or 1.0
    return list(Verdict).index(pair.verdict), -max(change, 1 / change)


def _check_definitions(before: Run, after: Run, definitions: Collection[str] | None) -> None:
    known = tuple(dict.fromkeys(name for run in (before, after) for name in run.trace_set.definitions))
    for name in definitions or ():
        if name not in known:
            raise UnknownName("definition", name, known)


def _check_solution(run: Run, traces: Mapping[_Key, Trace]) -> None:
    known = run.trace_set.solution_names()
    if run.solution is not None and run.solution not in known and not traces:
        raise UnknownName("solution", run.solution, known)


def _remedy(old: Iterable[Trace], new: Iterable[Trace], before: Run, rule: Rule) -> str:
    devices = [", ".join(sorted({_hardware(trace) for trace in group})) or "nowhere" for group in (old, new)]
    if devices[0] != devices[1] and not rule.any_hardware:
        return f"the first ran on {devices[0]}, the second on {devices[1]} (--any-hardware compares them all the same)"
    if before.solution is None:
        return "compare runs of the same solutions, or two solutions with --solutions"
    return "run both solutions on the same workloads"
