"""What the traces of a data set say: totals, a leaderboard, and the best solution per workload.

Functions here turn traces into plain rows; `tables` shows rows to people, ``--json`` to programs.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import attrs
from fib_schema import Evaluation, EvaluationStatus, InvalidRecord, Trace, TraceSet


@attrs.frozen
class Standing:
    """How one solution of a definition stands over all workloads that it ran on."""

    definition: str
    solution: str
    language: str
    passed: int
    total: int
    speedup: float | None
    """Geometric mean of the speedups over the reference; None unless every workload passed."""
    latency_ms: tuple[float, float] | None
    """The shortest and the longest of the median latencies of passing workloads."""
    statuses: Mapping[str, int]
    complaint: str
    """The first line of the first failure's log."""


@attrs.frozen
class Best:
    """The fastest passing solution on one workload."""

    definition: str
    workload: str
    axes: Mapping[str, int]
    solution: str
    speedup: float
    latency_ms: float
    reference_latency_ms: float
    hardware: str


@attrs.frozen
class Summary:
    """Totals over a data set."""

    definitions: int
    solutions: int
    workloads: int
    traces: int
    statuses: Mapping[str, int]
    standings: tuple[Standing, ...]


def summarise(trace_set: TraceSet) -> Summary:
    """Totals and the leaderboard of a data set."""
    groups = list(trace_set.traces.values())
    statuses = Counter(str(t.evaluation.status) for group in groups for t in group if t.evaluation)
    return Summary(
        definitions=len(trace_set.definitions),
        solutions=len(trace_set.solution_names()),
        workloads=sum(map(len, trace_set.workloads.values())),
        traces=sum(map(len, groups)),
        statuses=dict(statuses.most_common()),
        standings=tuple(leaderboard(trace_set)),
    )


def leaderboard(trace_set: TraceSet) -> list[Standing]:
    """The solutions of every definition that has traces: the fastest that pass everything first.

    Of several traces of one solution on one workload the latest counts.
    """
    standings: list[Standing] = []
    for definition, traces in trace_set.traces.items():
        by_solution: dict[str, list[Trace]] = {}
        for trace in latest(traces):
            by_solution.setdefault(str(trace.solution), []).append(trace)
        rows = [_standing(trace_set, definition, *item) for item in by_solution.items()]
        standings += sorted(rows, key=_rank)
    return standings


def best(trace_set: TraceSet, definitions: Collection[str] | None = None) -> list[Best]:
    """The fastest passing solution on every workload.

    Raises:
        UnknownName: A definition is not in the set.
    """
    for name in definitions or ():
        trace_set.get_definition(name)
    found: list[Best] = []
    for name in trace_set.traces if definitions is None else definitions:
        by_workload: dict[str, list[Trace]] = {}
        for trace in latest(trace_set.traces.get(name, [])):
            if trace.is_successful():
                by_workload.setdefault(trace.workload.uuid, []).append(trace)
        found += [_best(group) for group in by_workload.values()]
    return found


def latest(traces: Iterable[Trace]) -> list[Trace]:
    """The last trace of each solution on each workload and device."""
    kept: dict[tuple[str | None, str, str], Trace] = {}
    for trace in traces:
        if trace.evaluation is not None:
            key = (trace.solution, trace.workload.uuid, trace.evaluation.environment.hardware)
            kept[key] = trace
    return list(kept.values())


def complaint(evaluation: Evaluation) -> str:
    """A failed evaluation in one line."""
    lines = [line.strip() for line in evaluation.log.splitlines() if line.strip()]
    if not lines:
        return ""
    is_traceback = lines[0].startswith("Traceback")
    line = _before_output(lines)[-1] if is_traceback else lines[0]
    return "".join(c if c.isprintable() else " " for c in line)  # a solution's words steer no terminal


def _before_output(lines: list[str]) -> list[str]:
    marks = [i for i, line in enumerate(lines) if line.startswith("--- printed by")]
    return lines[: marks[0]] if marks and marks[0] else lines


def _standing(trace_set: TraceSet, definition: str, name: str, traces: list[Trace]) -> Standing:
    evaluations = [trace.evaluation for trace in traces if trace.evaluation]
    good = [e.performance for e in evaluations if e.performance]
    bad = [e for e in evaluations if e.status is not EvaluationStatus.PASSED]
    speedups = [p.speedup_factor for p in good if p.speedup_factor > 0]
    latencies = [p.latency_ms for p in good]
    return Standing(
        definition=definition,
        solution=name,
        language=_language(trace_set, name),
        passed=len(good),
        total=len(evaluations),
        speedup=statistics.geometric_mean(speedups) if speedups and not bad else None,
        latency_ms=(min(latencies), max(latencies)) if latencies else None,
        statuses=dict(Counter(str(e.status) for e in evaluations)),
        complaint=f"{bad[0].status}: {complaint(bad[0])}" if bad else "",
    )


def _language(trace_set: TraceSet, name: str) -> str:
    """A solution's language, or ``?`` where its file is gone or bad: its traces count all the same."""
    try:
        solution = trace_set.get_solution(name)
    except InvalidRecord:
        return "?"
    return str(solution.spec.language) if solution else "?"


def _rank(standing: Standing) -> tuple[bool, float, int, str]:
    speedup = standing.speedup
    return (speedup is None, -(speedup or 0.0), -standing.passed, standing.solution)


def _best(traces: list[Trace]) -> Best:
    def speedup(trace: Trace) -> float:
        assert trace.evaluation is not None
        assert trace.evaluation.performance is not None
        return trace.evaluation.performance.speedup_factor

    winner = max(traces, key=speedup)
    assert winner.evaluation is not None
    assert winner.evaluation.performance is not None
    performance = winner.evaluation.performance
    return Best(
        definition=winner.definition,
        workload=winner.workload.uuid,
        axes=dict(winner.workload.axes),
        solution=str(winner.solution),
        speedup=performance.speedup_factor,
        latency_ms=performance.latency_ms,
        reference_latency_ms=performance.reference_latency_ms,
        hardware=winner.evaluation.environment.hardware,
    )
