"""Results of a data set: the solutions of each definition in order, the fastest of each workload, and the totals.

Results are grouped by definition and device: the latest trace of each solution on each workload that measured the
workload's layout. The workloads of a group are those that any solution was tried on, and shares are always shares of
all of them. ``fast_1`` is the share on which a solution passes and is faster than the reference. Source: KernelBench
(Ouyang et al., 2025).
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

import attrs
from fib_schema import (
    Evaluation,
    EvaluationStatus,
    InvalidRecord,
    Performance,
    Problem,
    Severity,
    Trace,
    TraceSet,
    Workload,
)
from fib_schema.display import counted, escape_line, format_latency, shortened
from fib_schema.trace_facts import (
    CPU_TIMING,
    INTERPRETED,
    OLDER_TIMING,
    baseline_of,
    disqualifying_flags,
    fastest,
    kind_of,
    latency_of,
    latest,
    reference_timing_of,
    shown_latency_of,
    timing_of,
)

from .ratios import (
    UNKNOWN,
    Bounds,
    Outcome,
    Ratio,
    baseline_speedup_of,
    bounds_of,
    call_of,
    labels_of,
    latency_with_bounds,
    light_of,
    mean_of,
    speedup_of,
    timed_by,
    timing_bounds,
)

_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[-+]?\d+)?|\bnan\b|\binf\b)", re.IGNORECASE)
_SOLUTION = re.compile(r"^solution '[^']*' \(\w+\): ")
"""The beginning of an error of a build; what shows the line names the solution."""
_NOT_COMPILED = "does not compile"
"""In the first line of such an error, before the lines of the compiler."""
_PLURAL = re.compile(r"(?<=\w)s\b")
_MAX_CHARS = 120


@attrs.frozen(slots=False)
class DeviceResults:
    """The results of one definition on one device: the latest trace of each solution on each workload."""

    definition: str
    hardware: str
    traces: Mapping[str, Mapping[str, Trace]]
    """Traces by solution, then by workload."""
    allow_flags: Collection[str] = ()

    @cached_property
    def workloads(self) -> Mapping[str, Workload]:
        """The workloads that any solution was tried on."""
        return {uuid: trace.workload for group in self.traces.values() for uuid, trace in group.items()}

    def speedup(self, trace: Trace) -> Ratio:
        """The speedup of one trace of this group over the reference, ranked or not."""
        if latency_of(trace, (*self.allow_flags, CPU_TIMING)) is None:
            return UNKNOWN
        return speedup_of(_performance(trace))

    def speedups(self, solution: str) -> list[Ratio]:
        """The speedups over the reference that are known, ranked or not."""
        found = map(self.speedup, self.traces[solution].values())
        return [ratio for ratio in found if ratio.outcome is not Outcome.UNKNOWN]

    def fast_1(self, solution: str) -> float:
        """The share of workloads on which a ranked trace is faster than the reference, also at its lower bound."""
        ranked = [trace for trace in self.traces[solution].values() if latency_of(trace, self.allow_flags) is not None]
        return sum((self.speedup(trace).certain_value or 0.0) > 1.0 for trace in ranked) / len(self.workloads)

    def over_baseline(self, solution: str) -> tuple[str | None, Ratio]:
        """The baseline that most traces of a solution were timed interleaved with, and the mean speedup over it."""
        found: dict[str, list[Ratio]] = {}
        for trace in self.traces[solution].values():
            if latency_of(trace, (*self.allow_flags, CPU_TIMING)) is not None:
                performance = _performance(trace)
                if (baseline := baseline_of(performance)) is not None and baseline.speedup:
                    found.setdefault(baseline.solution, []).append(baseline_speedup_of(performance))
        if not found:
            return None, UNKNOWN
        name = max(found, key=lambda each: len(found[each]))
        return name, mean_of(found[name])


def group_results(
    trace_set: TraceSet, allow_flags: Collection[str] = (), definitions: Collection[str] | None = None
) -> Iterator[DeviceResults]:
    """The traces of a data set by definition and device; `UnknownName` for a definition that is not in the set."""
    for name in definitions or ():
        trace_set.get_definition(name)
    for definition in trace_set.traces if definitions is None else definitions:
        for hardware, workloads in latest(trace_set.counting_traces(definition)).items():
            traces: dict[str, dict[str, Trace]] = {}
            for uuid, group in workloads.items():
                for solution, trace in group.items():
                    traces.setdefault(solution, {})[uuid] = trace
            _mark_older(traces)
            yield DeviceResults(definition, hardware, traces, allow_flags)


def _mark_older(traces: Mapping[str, dict[str, Trace]]) -> None:
    """Flag traces of older timing methods, unless all are."""
    found = [(group, uuid, trace.evaluation) for group in traces.values() for uuid, trace in group.items()]
    timed = [(group, uuid, e, kind_of(e.performance) == "older") for group, uuid, e in found if e and e.performance]
    if all(is_older for *_, is_older in timed):
        return
    for group, uuid, evaluation, is_older in timed:
        if is_older:
            extra = {**dict(evaluation.extra or {}), "flags": [*evaluation.flags, OLDER_TIMING]}
            group[uuid] = attrs.evolve(group[uuid], evaluation=attrs.evolve(evaluation, extra=extra))


def _performance(trace: Trace) -> Performance:
    assert trace.evaluation is not None
    assert trace.evaluation.performance is not None  # it has a latency
    return trace.evaluation.performance


def report_problems(trace_set: TraceSet, definitions: Collection[str] | None = None) -> list[Problem]:
    """Definitions with traces of another layout than their workload's."""
    problems = []
    for name in trace_set.traces if definitions is None else definitions:
        left_out = len(trace_set.traces.get(name, [])) - len(trace_set.counting_traces(name))
        if left_out:
            message = (
                f"{counted(left_out, 'trace')} measured another layout than that of the workload, and "
                f"{'does' if left_out == 1 else 'do'} not count; 'fib-bench run --resume' measures the workload's"
            )
            problems.append(Problem(str(trace_set.root), name, message, Severity.WARNING, "other-layout"))
    return problems


@attrs.frozen
class Failure:
    """The failures of one solution that have the same cause: equal texts, except for numbers."""

    status: str
    text: str
    """The status and the error line of the first one; the line is output of the solution."""
    workloads: tuple[str, ...]
    """The axes of each workload, with its uuid where several have the same."""

    @property
    def cause(self) -> str:
        """The text before its details, without numbers and plurals, which is equal for failures of one cause."""
        return _PLURAL.sub("", _NUMBER.sub("#", self.text.partition(";")[0]))


def group_failures(traces: Iterable[Trace]) -> tuple[Failure, ...]:
    """The failures among the traces of one solution, in order of the first of each cause."""
    traces = list(traces)
    names = Counter(axes_text(trace.workload.axes) for trace in traces)
    groups: dict[str, Failure] = {}
    for trace in traces:
        evaluation = trace.evaluation
        if evaluation is None or evaluation.status is EvaluationStatus.PASSED:
            continue
        axes, uuid = axes_text(trace.workload.axes), trace.workload.uuid
        workload = axes if axes and names[axes] == 1 else f"{axes} ({uuid[:8]})" if axes else uuid
        one = Failure(str(evaluation.status), failure_text(evaluation), (workload,))
        known = groups.get(one.cause)
        groups[one.cause] = one if known is None else attrs.evolve(known, workloads=(*known.workloads, workload))
    return tuple(groups.values())


def axes_text(axes: Mapping[str, int]) -> str:
    """The sizes of a workload, such as ``n=2, m=3``."""
    return ", ".join(f"{axis}={size}" for axis, size in axes.items())


def error_line(evaluation: Evaluation) -> str:
    """The line of a log with the reason of a failure, control characters escaped. It is untrusted text."""
    lines = [line.strip() for line in evaluation.log.splitlines() if line.strip()]
    if not lines:
        return ""
    if not lines[0].startswith("Traceback"):
        is_details_first = _NOT_COMPILED in lines[0] and len(lines) > 1
        return escape_line(lines[1] if is_details_first else _SOLUTION.sub("", lines[0]))
    marks = [i for i, line in enumerate(lines) if line.startswith("--- printed by")]
    return escape_line(lines[: marks[0] if marks else None][-1])


def failure_text(evaluation: Evaluation) -> str:
    """The status of a failed evaluation and its error line, which is marked as output of the solution.

    Readers of reports, language models among them, must not take text of a solution for text of the harness.
    """
    line, status = error_line(evaluation), str(evaluation.status)
    if INTERPRETED in evaluation.flags:  # an interpreter computes bfloat16 as integers, for instance
        status += f" ({INTERPRETED})"
    return shortened(f"{status}, untrusted output: {line}", _MAX_CHARS) if line else status


def format_trace(trace: Trace, *, has_reason: bool = True) -> str:
    """One evaluation in one line, on request without the reason of a failure.

    A CPU timing has no speedup here: whether it is reliable shows only after all solutions have run.
    """
    evaluation = trace.evaluation
    head = f"{trace.definition} [{axes_text(trace.workload.axes)}] {trace.solution}"
    if evaluation is None:
        return f"{trace.definition} {trace.workload.uuid}"
    if (performance := evaluation.performance) is None:
        return f"{head}: {failure_text(evaluation) if has_reason else evaluation.status}"
    latency, labels, methods = shown_latency_of(evaluation), labels_of(evaluation), timed_by(performance)
    facts = [] if latency is None else [latency_with_bounds(latency, bounds_of(performance))]
    if not {CPU_TIMING, INTERPRETED} & set(labels) and (text := speedup_of(performance).text) != "-":
        facts.append(text)
    if latency is not None and (call := call_of(performance)) not in (None, latency):
        facts.append(f"call {format_latency(call)}")
    facts += labels
    facts += [f"timed by: {methods}"] if methods and latency is not None else []
    return f"{head}: {evaluation.status} {', '.join(facts)}"


@attrs.frozen
class LeaderboardRow:
    """One solution of a definition over all workloads that it ran on, on one device."""

    definition: str
    hardware: str
    solution: str
    author: str
    language: str
    passed: int
    total: int
    is_ranked: bool
    """Whether every workload passed, without a flag that keeps a trace out of rankings."""
    speedup: Ratio
    """Geometric mean of the speedups over the reference."""
    baseline: str | None
    baseline_speedup: Ratio
    """The same speedup, over the baseline."""
    fast_1: float
    attainable_fraction: float | None
    """The median share of the attainable speed, over workloads where it is known."""
    latency_ms: Bounds | None
    """The shortest and the longest of the median latencies of passing workloads; None for interpreted kernels."""
    latency_bounds_ms: Bounds | None
    """The interval of the latency, with the uncertainty of the clock, where a single workload passed; else None."""
    call_ms: Bounds | None
    """The shortest and the longest of the call latencies, where they were measured; None on the CPU."""
    timed_by: tuple[str, ...]
    """Timing methods, without ``handshake``."""
    labels: tuple[str, ...]
    """Flags that every table shows, such as ``unranked: cpu timing``."""
    statuses: Mapping[str, int]
    flags: tuple[str, ...]
    problem: str
    """The status and the error line of the first failure, or why the solution is not ranked."""
    failures: tuple[Failure, ...]
    """All failures, those of one cause together."""


def leaderboard(trace_set: TraceSet, allow_flags: Collection[str] = ()) -> list[LeaderboardRow]:
    """The solutions of every definition that has traces, also with `allow_flags`: the fastest ranked ones first."""
    return [row for results in group_results(trace_set, allow_flags) for row in ranked_rows(trace_set, results)]


def ranked_rows(trace_set: TraceSet, results: DeviceResults) -> list[LeaderboardRow]:
    """The solutions of one definition on one device, the best first. Unranked ones are not ordered by latency."""
    return sorted((_row(trace_set, results, name) for name in results.traces), key=_order)


def _row(trace_set: TraceSet, results: DeviceResults, name: str) -> LeaderboardRow:
    evaluations = [trace.evaluation for trace in results.traces[name].values() if trace.evaluation]
    good = [e.performance for e in evaluations if e.performance]
    bad = [e for e in evaluations if e.status is not EvaluationStatus.PASSED]
    blocking = {flag for e in evaluations for flag in disqualifying_flags(e, results.allow_flags)}
    is_shown = not bad and not blocking - {CPU_TIMING}
    labels = tuple(dict.fromkeys(label for e in evaluations for label in labels_of(e)))
    speedup = _mark_wide(mean_of(results.speedups(name)), results.speedups(name), labels) if is_shown else UNKNOWN
    baseline, over_baseline = results.over_baseline(name) if is_shown else (None, UNKNOWN)
    timed = [(latency, e.performance) for e in evaluations if (latency := shown_latency_of(e)) and e.performance]
    latencies = [latency for latency, _ in timed]
    calls = [call for _, p in timed if (call := call_of(p)) is not None]
    fractions = [fraction for p in good if (fraction := light_of(p)) is not None]
    author, language = _source(trace_set, name)
    return LeaderboardRow(
        definition=results.definition,
        hardware=results.hardware,
        solution=name,
        author=author,
        language=language,
        passed=len(good),
        total=len(evaluations),
        is_ranked=not bad and not blocking,
        speedup=speedup,
        baseline=baseline,
        baseline_speedup=over_baseline,
        fast_1=results.fast_1(name),
        attainable_fraction=statistics.median(fractions) if fractions else None,
        latency_ms=(min(latencies), max(latencies)) if latencies else None,
        latency_bounds_ms=bounds_of(good[0]) if len(good) == len(latencies) == 1 else None,
        call_ms=(min(calls), max(calls)) if calls else None,
        timed_by=tuple(sorted({words for _, performance in timed if (words := timed_by(performance))})),
        labels=labels,
        statuses=dict(Counter(str(e.status) for e in evaluations)),
        flags=tuple(sorted({flag for e in evaluations for flag in e.flags})),
        problem=failure_text(bad[0]) if bad else _unranked(blocking),
        failures=group_failures(results.traces[name].values()),
    )


def _mark_wide(mean: Ratio, ratios: Iterable[Ratio], labels: Collection[str]) -> Ratio:
    """A mean that counts as wide if one ratio does, on the CPU.

    An interval on the CPU does not bound the error that other programs cause, so a mean must not average it out.
    """
    if CPU_TIMING in labels and any(ratio.outcome is Outcome.WIDE for ratio in ratios):
        return attrs.evolve(mean, is_wide=True)
    return mean


def _unranked(blocking: Collection[str]) -> str:
    flags = sorted(set(blocking) - {CPU_TIMING, INTERPRETED, OLDER_TIMING})
    return f"unranked, flagged: {', '.join(flags)}" if flags else ""


def _source(trace_set: TraceSet, name: str) -> tuple[str, str]:
    """A solution's author and language, or ``?`` if its file is missing or invalid: its traces count all the same."""
    try:
        solution = trace_set.get_solution(name)
    except InvalidRecord:
        return "?", "?"
    return (solution.author, str(solution.spec.language)) if solution else ("?", "?")


def _order(row: LeaderboardRow) -> tuple[bool, bool, float, int, float, str]:
    value = row.speedup.point if row.is_ranked else None
    return (not row.is_ranked, value is None, -(value or 0.0), -row.passed, -row.fast_1, row.solution)


@attrs.frozen
class Best:
    """The fastest passing solution on one workload, on one device."""

    definition: str
    workload: str
    axes: Mapping[str, int]
    solution: str
    speedup: Ratio
    """Over the reference."""
    latency_ms: float
    bounds_ms: Bounds | None
    """The confidence interval, widened by the uncertainty of the clock."""
    call_ms: float | None
    """The time that an eager caller waits; None where it was not measured, and on the CPU."""
    reference_latency_ms: float | None
    attainable_fraction: float | None
    hardware: str
    timed_by: str
    """Timing methods; empty for ``handshake`` alone."""
    labels: tuple[str, ...]
    """Flags that every table shows, such as ``unranked: cpu timing``."""


def best(
    trace_set: TraceSet, definitions: Collection[str] | None = None, *, allow_flags: Collection[str] = ()
) -> list[Best]:
    """The fastest ranked solution that passed on every workload, on each device; also with `allow_flags`."""
    found: list[Best] = []
    for results in group_results(trace_set, allow_flags, definitions):
        by_workload: dict[str, list[Trace]] = {}
        for group in results.traces.values():
            for uuid, trace in group.items():
                by_workload.setdefault(uuid, []).append(trace)
        winners = (fastest(traces, allow_flags) for traces in by_workload.values())
        rows = [_best(winner, results) for winner in winners if winner is not None]
        found += sorted(rows, key=lambda row: sorted(row.axes.items()))
    return found


def _best(winner: Trace, results: DeviceResults) -> Best:
    assert winner.evaluation is not None
    performance = _performance(winner)
    timing, reference = timing_of(performance), reference_timing_of(performance)
    return Best(
        definition=winner.definition,
        workload=winner.workload.uuid,
        axes=dict(winner.workload.axes),
        solution=str(winner.solution),
        speedup=results.speedup(winner),
        latency_ms=performance.latency_ms,
        bounds_ms=timing_bounds(timing),
        call_ms=call_of(performance),
        reference_latency_ms=None if reference is None else reference.latency_ms,
        attainable_fraction=light_of(performance),
        hardware=results.hardware,
        timed_by=timed_by(performance),
        labels=labels_of(winner.evaluation),
    )


@attrs.frozen
class Summary:
    """Totals over a data set."""

    definitions: int
    solutions: int
    workloads: int
    traces: int
    statuses: Mapping[str, int]
    leaderboard: tuple[LeaderboardRow, ...]


def summarise(trace_set: TraceSet, allow_flags: Collection[str] = ()) -> Summary:
    """Totals and the leaderboard of a data set; see `leaderboard`."""
    groups = list(trace_set.traces.values())
    statuses = Counter(str(t.evaluation.status) for group in groups for t in group if t.evaluation)
    return Summary(
        definitions=len(trace_set.definitions),
        solutions=len(trace_set.solution_names()),
        workloads=sum(map(len, trace_set.workloads.values())),
        traces=sum(map(len, groups)),
        statuses=dict(statuses.most_common()),
        leaderboard=tuple(leaderboard(trace_set, allow_flags)),
    )
