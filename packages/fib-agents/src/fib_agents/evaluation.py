"""Tools that run solutions in the benchmark: evaluate one, compare two."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import attrs
from fib_bench import BenchmarkConfig
from fib_bench import evaluate as run_evaluation
from fib_bench.benchmark import RunResult
from fib_bench.events import Evaluated, Event
from fib_bench.report.leaderboard import axes_text
from fib_bench.report.ratios import Outcome, baseline_speedup_of, labels_of, light_of, speedup_of
from fib_schema import Definition, EvaluationStatus, Solution, Trace, Workload
from fib_schema.display import counted
from fib_schema.trace_facts import baseline_of

from .errors import InvalidArguments
from .results import Result, fenced, untrusted
from .triage import Finding, first_findings
from .workspace import Code, Workspace, choose_workloads, read_solution

QUICK_WORKLOADS = 3
"""The workloads of a quick evaluation that names none."""
_MAX_WORKLOADS = 1000
_LOG_CHARS = 1200
_NUMBER = re.compile(r"-?\d[\d.]*(e[-+]\d+)?")
_MEASURE_SECONDS = 0.5
"""Time budget of a full evaluation for each function and workload."""


@attrs.frozen
class WorkloadResult:
    """The result of a solution on one workload."""

    workload: str
    axes: Mapping[str, int]
    status: str
    """``PASSED``, or the kind of failure."""
    latency_ms: float | None
    reference_ms: float | None
    speedup: float | None
    """Over the reference, see `speedup_text` for its interval and mark."""
    certain_speedup: float | None
    """The speedup that the measurement proves: the number, or the lower bound of a wide interval."""
    speedup_text: str
    attainable_fraction: float | None
    """The share of the speed that the device attains in practice."""
    labels: tuple[str, ...]
    log: str = untrusted()

    @property
    def is_passed(self) -> bool:
        """Whether its outputs were right and no check objected."""
        return self.status == EvaluationStatus.PASSED


@attrs.frozen
class EvaluationResult(Result):
    """The results of a solution on some workloads."""

    definition: str
    solution: str
    device: str
    is_quick: bool
    results: tuple[WorkloadResult, ...]
    skipped: tuple[str, ...]
    """Workloads that could not run, with the reasons; no fault of the solution."""
    findings: tuple[Finding, ...]

    @property
    def is_passed(self) -> bool:
        """Whether it passed on all workloads, and all ran."""
        return bool(self.results) and not self.skipped and all(one.is_passed for one in self.results)

    def lines(self) -> Iterator[str]:
        """A line for each workload; the log of each kind of failure once."""
        passed = sum(one.is_passed for one in self.results)
        kind = "quick, unranked" if self.is_quick else "full"
        yield f"{self.solution} on {self.device} ({kind}): passed {passed} of {counted(len(self.results), 'workload')}"
        shown: set[str] = set()
        for one in self.results:
            yield _line_of(one)
            first = _NUMBER.sub("", one.log.strip().partition("\n")[0])
            if not one.is_passed and first not in shown:
                shown.add(first)
                yield from fenced(one.log, "log of the evaluation", _LOG_CHARS)
        yield from (f"not run: {reason}" for reason in self.skipped)
        yield from (finding.describe() for finding in self.findings)
        if any(one.status == EvaluationStatus.INCORRECT_NUMERICAL for one in self.results):
            yield "next: explain_failure shows the first wrong elements with their inputs"
        elif self.is_quick and self.is_passed:
            yield "next: make it faster, or evaluate it with quick false and submit it"


@attrs.frozen
class Comparison:
    """Two solutions on one workload."""

    workload: str
    axes: Mapping[str, int]
    verdict: str
    """``faster``, ``slower``, ``no difference``, ``undecided`` (the interval is wide), or why there is none."""
    ratio: float | None
    """The latency of the second, divided by that of the first."""
    interval: tuple[float, float] | None
    first_ms: float | None
    second_ms: float | None
    log: str = untrusted(default="")
    """The reason that one of them has no latency."""


@attrs.frozen
class ComparisonResult(Result):
    """Two solutions, timed interleaved."""

    first: str
    second: str
    device: str
    comparisons: tuple[Comparison, ...]

    def lines(self) -> Iterator[str]:
        """A line for each workload."""
        yield f"{self.first} against {self.second} on {self.device}, timed interleaved"
        for one in self.comparisons:
            yield f"- {one.workload} [{axes_text(one.axes)}]: {_verdict_text(one)}"
            yield from fenced(one.log, "log of the evaluation", _LOG_CHARS) if one.log else ()


def evaluate(
    workspace: Workspace, definition: str, solution: Code, *, quick: bool = True, workloads: Sequence[str] | None = None
) -> EvaluationResult:
    """Evaluate a solution: build it, check its outputs, measure its latency against the reference.

    Args:
        workspace: Where to work.
        definition: The name of the definition.
        solution: The files, such as {"kernel.py": source}, or the name of a solution of the data set.
        quick: Check and time shortly, on 3 workloads; enough for the loop of editing, and unranked.
        workloads: The uuids of workloads; by default 3 of a quick evaluation, all of a full one.

    Raises:
        UnknownName: There is no such definition, solution or workload.
        KernelFileError: Language, entry point or style cannot be inferred.
        UnsupportedDevice: There is no such device here.
    """
    trace_set = workspace.open()
    found = trace_set.get_definition(definition)
    given = read_solution(workspace, trace_set, found, solution)
    findings = first_findings(given, found)
    chosen = choose_workloads(trace_set, found, workloads, QUICK_WORKLOADS if quick else _MAX_WORKLOADS)
    run = run_traces(workspace, found, given, chosen, quick=quick)
    return EvaluationResult(
        definition=definition,
        solution=given.name,
        device=workspace.device,
        is_quick=quick,
        results=tuple(result_of(trace) for trace in run.traces),
        skipped=tuple(f"{skip.workload}: {skip.reason}" for skip in run.skipped),
        findings=findings,
    )


def compare(
    workspace: Workspace, definition: str, first: Code, second: Code, *, workloads: Sequence[str] | None = None
) -> ComparisonResult:
    """Compare the latencies of two solutions that are timed interleaved, with intervals.

    Args:
        workspace: Where to work.
        definition: The name of the definition.
        first: The files, such as {"kernel.py": source}, or the name of a solution of the data set.
        second: The same, of the solution to compare with it.
        workloads: The uuids of workloads; by default 3, from the first to the last.

    Raises:
        UnknownName: There is no such definition, solution or workload.
        KernelFileError: Language, entry point or style cannot be inferred.
        InvalidArguments: Both are the same code.
    """
    trace_set = workspace.open()
    found = trace_set.get_definition(definition)
    one, other = (read_solution(workspace, trace_set, found, code) for code in (first, second))
    if one.hash() == other.hash():
        raise InvalidArguments("compare", (f"{one.name} and {other.name} have the same code and settings",))
    if one.name == other.name:
        other = attrs.evolve(other, name=f"{other.name}_second")
    chosen = choose_workloads(trace_set, found, workloads, QUICK_WORKLOADS)
    run = run_traces(workspace, found, one, chosen, quick=False, baseline=other)
    skipped = [
        Comparison(str(skip.workload), {}, f"not run: {skip.reason}", None, None, None, None) for skip in run.skipped
    ]
    compared = [_comparison_of(trace, other.name) for trace in run.traces]
    return ComparisonResult(one.name, other.name, workspace.device, (*compared, *skipped))


def run_traces(
    workspace: Workspace,
    definition: Definition,
    solution: Solution,
    workloads: Sequence[Workload],
    *,
    quick: bool,
    baseline: Solution | None = None,
    place: tuple[int, int] | None = None,
) -> RunResult:
    """Evaluate in the benchmark's warm process, with cancellation and progress, which counts on from `place`."""
    done, total = place or (0, len(workloads))

    def observe(event: Event) -> None:
        nonlocal done
        if isinstance(event, Evaluated):
            done += 1
            status = event.trace.evaluation.status if event.trace.evaluation else ""
            workspace.progress(done, total, f"{event.trace.workload.uuid}: {status}")

    config = BenchmarkConfig(
        device=workspace.device,
        quick=quick,
        timeout_seconds=workspace.timeout_seconds,
        measure_seconds=None if quick else _MEASURE_SECONDS,
    ).for_data_set(workspace.open())
    return run_evaluation(
        definition,
        solution,
        workloads,
        config,
        root=workspace.root,
        baseline=baseline,
        observe=observe,
        cancelled=workspace.cancelled,
    )


def result_of(trace: Trace) -> WorkloadResult:
    """The facts of a trace."""
    evaluation = trace.evaluation
    assert evaluation is not None
    performance = evaluation.performance
    ratio = None if performance is None else speedup_of(performance)
    return WorkloadResult(
        workload=trace.workload.uuid,
        axes=dict(trace.workload.axes),
        status=str(evaluation.status),
        latency_ms=None if performance is None else performance.latency_ms,
        reference_ms=None if performance is None else performance.reference_latency_ms,
        speedup=None if ratio is None else ratio.point,
        certain_speedup=None if ratio is None else ratio.certain_value,
        speedup_text="" if ratio is None else ratio.text,
        attainable_fraction=None if performance is None else light_of(performance),
        labels=tuple(labels_of(evaluation)),
        log=evaluation.log,
    )


def _comparison_of(trace: Trace, other: str) -> Comparison:
    evaluation = trace.evaluation
    assert evaluation is not None
    place = (trace.workload.uuid, dict(trace.workload.axes))
    performance = evaluation.performance
    if performance is None:
        verdict = f"{trace.solution} failed: {evaluation.status}"
        return Comparison(*place, verdict, None, None, None, None, evaluation.log)
    baseline = baseline_of(performance)
    if baseline is None:
        not_timed = performance.extra.get("not_timed") if performance.extra else None
        reasons = list(not_timed.values()) if isinstance(not_timed, dict) else []
        reason = str(reasons[0]) if reasons else "it was not timed"
        return Comparison(*place, f"{other} failed", None, None, performance.latency_ms, None, reason)
    ratio = baseline_speedup_of(performance)
    verdict = "faster" if (ratio.point or 0.0) > 1.0 else "slower"
    if ratio.outcome is Outcome.NOISE:
        verdict = "no difference" if ratio.is_narrow else "undecided"
    second_ms = None if baseline.timing is None else baseline.timing.latency_ms
    return Comparison(*place, verdict, ratio.point, ratio.interval, performance.latency_ms, second_ms)


def _verdict_text(one: Comparison) -> str:
    if one.ratio is None or one.first_ms is None:
        return one.verdict
    interval = "" if one.interval is None else f" ({one.interval[0]:.3f} to {one.interval[1]:.3f})"
    second = "" if one.second_ms is None else f" against {one.second_ms:.5g} ms"
    return f"{one.verdict}, ratio {one.ratio:.3f}{interval}: {one.first_ms:.5g} ms{second}"


def _line_of(one: WorkloadResult) -> str:
    head = f"- {one.workload} [{axes_text(one.axes)}]: {one.status}"
    if one.latency_ms is None:
        return head
    parts = [f"{one.latency_ms:.5g} ms"]
    if one.reference_ms:
        parts.append(f"reference {one.reference_ms:.5g} ms, speedup {one.speedup_text}")
    if one.attainable_fraction is not None:
        parts.append(f"{one.attainable_fraction:.0%} of the attainable speed")
    return f"{head} {', '.join([*parts, *one.labels])}"
