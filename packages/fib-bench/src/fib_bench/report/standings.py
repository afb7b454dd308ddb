"""Totals, the leaderboard, the best solution of each workload, and the ranking of authors.

Only what was measured on one device is compared: a *contest* is one definition on one device. Its
workloads are those that any solution was tried on there, and shares are always shares of all of them:

- ``win@p``: on which the solution passes with a latency of at most p times the shortest latency of any
  ranked solution that passes there. ``win@1`` is being the fastest; equally fast ones all win.
- ``fast_p``: on which the solution passes and its speedup over the reference is greater than p.
  Source: KernelBench (Ouyang et al., 2025). Its *area* is the mean over 61 values of p from 0.1 to 100,
  equally spaced on a logarithmic scale: 0 if nothing passes, 1/3 for always as fast as the reference.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

import attrs
from fib_schema import (
    UNRANKED_FLAGS,
    Evaluation,
    EvaluationStatus,
    InvalidRecord,
    Performance,
    ScoringError,
    Trace,
    TraceSet,
    UnknownName,
    Workload,
)

from .readings import baseline_of, interval_of, latency_of, light_of, speedup_of

WIN_FACTORS = (1.0, 1.1)
FAST_GRID = tuple(round(10 ** (step / 20), 6) for step in range(-20, 41))
"""The values of p at which `fast_curve` is computed."""
_ROUNDING = 1 + 1e-9  # a latency of 1.1 times another must count as such


@attrs.frozen(kw_only=True)
class Options:
    """What reports can be told."""

    allow_flags: Collection[str] = ()
    """Flags (of `fib_schema.UNRANKED_FLAGS`) with which a trace is ranked all the same."""
    baseline: str | None = None
    """The solution that speedups are quoted against too; None means the one that a trace itself names."""
    baseline_author: str = "baseline"
    """Whose solutions authors are ranked against."""
    win_factors: Sequence[float] = WIN_FACTORS


@attrs.frozen(slots=False)
class Contest:
    """What was tried on one definition on one device: the latest trace of each solution on each workload."""

    definition: str
    hardware: str
    traces: Mapping[str, Mapping[str, Trace]]
    """By solution, then by workload."""
    allow_flags: Collection[str] = ()

    @cached_property
    def workloads(self) -> Mapping[str, Workload]:
        """Those that any solution was tried on."""
        return {uuid: trace.workload for group in self.traces.values() for uuid, trace in group.items()}

    @cached_property
    def shortest_ms(self) -> Mapping[str, float]:
        """The shortest latency of a ranked trace that passed, by workload."""
        shortest: dict[str, float] = {}
        for group in self.traces.values():
            for uuid, trace in group.items():
                latency = latency_of(trace, self.allow_flags)
                if latency is not None and latency < shortest.get(uuid, float("inf")):
                    shortest[uuid] = latency
        return shortest

    def win_at(self, solution: str, factor: float) -> float:
        """The share of workloads that the solution wins within a factor."""
        won = 0
        for uuid, trace in self.traces[solution].items():
            latency = latency_of(trace, self.allow_flags)
            won += latency is not None and latency <= factor * self.shortest_ms[uuid] * _ROUNDING
        return won / len(self.workloads)

    def speedups(self, solution: str) -> list[float]:
        """Over the reference, on the workloads that the solution passes, ranked."""
        found = []
        for trace in self.traces[solution].values():
            performance = _performance(trace)
            if performance is not None and latency_of(trace, self.allow_flags) is not None:
                found.append(speedup_of(performance))
        return [speedup for speedup in found if speedup is not None]

    def fast_curve(self, solution: str) -> list[float]:
        """``fast_p`` at each p of `FAST_GRID`."""
        speedups, count = sorted(self.speedups(solution)), len(self.workloads)
        return [(len(speedups) - bisect_right(speedups, p)) / count for p in FAST_GRID]

    def baseline_speedups(self, solution: str, baseline: str | None) -> dict[str, list[float]]:
        """Speedups over baselines, by their names: timed in turns where a trace says so, else by two latencies."""
        found: dict[str, list[float]] = {}
        base = self.traces.get(baseline or "", {})
        for uuid, trace in self.traces[solution].items():
            latency, performance = latency_of(trace, self.allow_flags), _performance(trace)
            if latency is None or performance is None:
                continue
            beside = baseline_of(performance)
            if beside is not None and baseline in (None, beside.solution):
                found.setdefault(beside.solution, []).append(beside.speedup)
            elif baseline is not None and (other := latency_of(base.get(uuid), self.allow_flags)) is not None:
                found.setdefault(baseline, []).append(other / latency)
        return found


@attrs.frozen
class Standing:
    """How one solution of a definition stands over all workloads that it ran on, on one device."""

    definition: str
    hardware: str
    solution: str
    author: str
    language: str
    passed: int
    total: int
    speedup: float | None
    """Geometric mean of the speedups over the reference; None unless every workload passed, and is ranked."""
    baseline: str | None
    baseline_speedup: float | None
    """Likewise over the baseline."""
    win_at: Mapping[str, float]
    """By the factor, as it is printed."""
    fast_area: float
    attainable_fraction: float | None
    """The median share of what the device attains in practice, over workloads where it is known."""
    latency_ms: tuple[float, float] | None
    """The shortest and the longest of the median latencies of passing workloads."""
    statuses: Mapping[str, int]
    flags: tuple[str, ...]
    complaint: str
    """The first line of the first failure's log, or why it is not ranked."""


@attrs.frozen
class Best:
    """The fastest passing solution on one workload, on one device."""

    definition: str
    workload: str
    axes: Mapping[str, int]
    solution: str
    speedup: float | None
    latency_ms: float
    interval_ms: tuple[float, float] | None
    reference_latency_ms: float | None
    attainable_fraction: float | None
    hardware: str


@attrs.frozen
class Author:
    """An author's score, as `fib_schema.TraceSet.rank_authors` says it."""

    author: str
    speedup: float
    """Mean over definitions of the best solution's mean speedup over the baseline author's."""
    workloads: int


@attrs.frozen
class Summary:
    """Totals over a data set."""

    definitions: int
    solutions: int
    workloads: int
    traces: int
    statuses: Mapping[str, int]
    standings: tuple[Standing, ...]
    authors: tuple[Author, ...]
    authors_note: str
    """Why authors, or definitions in their ranking, are missing; empty if none are."""


def summarise(trace_set: TraceSet, options: Options | None = None, *, allow_flags: Collection[str] = ()) -> Summary:
    """Totals and the leaderboard of a data set; see `leaderboard`."""
    options = options or Options(allow_flags=allow_flags)
    groups = list(trace_set.traces.values())
    statuses = Counter(str(t.evaluation.status) for group in groups for t in group if t.evaluation)
    authors, note = rank_authors(trace_set, options)
    return Summary(
        definitions=len(trace_set.definitions),
        solutions=len(trace_set.solution_names()),
        workloads=sum(map(len, trace_set.workloads.values())),
        traces=sum(map(len, groups)),
        statuses=dict(statuses.most_common()),
        standings=tuple(leaderboard(trace_set, options)),
        authors=authors,
        authors_note=note,
    )


def rank_authors(trace_set: TraceSet, options: Options) -> tuple[tuple[Author, ...], str]:
    """The authors by score, and why some or all are missing."""
    try:
        found = trace_set.summary(options.baseline_author, allow_flags=options.allow_flags)
    except ScoringError as error:
        return (), f"authors are not ranked: {error}"
    authors = tuple(Author(name, score.avg_speedup, score.workload_count) for name, score in found.rankings)
    if not found.unranked:
        return authors, ""
    whose = f"exactly one solution by {options.baseline_author!r}"
    if not authors:
        return (), f"authors are not ranked: no definition has {whose} (choose with --baseline-author)"
    return authors, f"{len(found.unranked)} definitions do not count in the ranking of authors: they lack {whose}"


def leaderboard(
    trace_set: TraceSet, options: Options | None = None, *, allow_flags: Collection[str] = ()
) -> list[Standing]:
    """The solutions of every definition that has traces: the fastest that pass everything first.

    Of several traces of one solution on one workload the latest counts.

    Raises:
        UnknownName: The baseline is neither in the set nor in a trace.
    """
    options = options or Options(allow_flags=allow_flags)
    rows = [row for contest in contests(trace_set, options) for row in standings(trace_set, contest, options)]
    check_baseline(trace_set, options, rows)
    return rows


def contests(trace_set: TraceSet, options: Options, definitions: Collection[str] | None = None) -> list[Contest]:
    """What was tried, by definition and device.

    Raises:
        UnknownName: A definition is not in the set.
    """
    for name in definitions or ():
        trace_set.get_definition(name)
    found: list[Contest] = []
    for definition in trace_set.traces if definitions is None else definitions:
        by_hardware: dict[str, dict[str, dict[str, Trace]]] = {}
        for trace in latest(trace_set.traces.get(definition, [])):
            assert trace.evaluation is not None
            by_solution = by_hardware.setdefault(trace.evaluation.environment.hardware, {})
            by_solution.setdefault(str(trace.solution), {})[trace.workload.uuid] = trace
        found += [Contest(definition, device, traces, options.allow_flags) for device, traces in by_hardware.items()]
    return found


def standings(trace_set: TraceSet, contest: Contest, options: Options) -> list[Standing]:
    """The solutions of one contest, the best first."""
    return sorted((_standing(trace_set, contest, name, options) for name in contest.traces), key=_rank)


def check_baseline(trace_set: TraceSet, options: Options, rows: Iterable[Standing]) -> None:
    """Refuse a baseline that nobody knows.

    Raises:
        UnknownName: It is neither in the set nor in a trace.
    """
    name, known = options.baseline, trace_set.solution_names()
    if name is not None and name not in known and not any(name in (row.solution, row.baseline) for row in rows):
        raise UnknownName("solution", name, known)


def best(
    trace_set: TraceSet,
    definitions: Collection[str] | None = None,
    *,
    allow_flags: Collection[str] = (),
) -> list[Best]:
    """The fastest passing solution on every workload, on each device.

    Args:
        trace_set: The data set.
        definitions: Only these.
        allow_flags: Flags (of `fib_schema.UNRANKED_FLAGS`) with which a trace counts all the same.

    Raises:
        UnknownName: A definition is not in the set.
    """
    found: list[Best] = []
    for contest in contests(trace_set, Options(allow_flags=allow_flags), definitions):
        winners: dict[str, Trace] = {}
        for group in contest.traces.values():
            for uuid, trace in group.items():
                if uuid not in winners and latency_of(trace, allow_flags) == contest.shortest_ms.get(uuid, -1.0):
                    winners[uuid] = trace
        found += [_best(winners[uuid]) for uuid in contest.workloads if uuid in winners]
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


def _standing(trace_set: TraceSet, contest: Contest, name: str, options: Options) -> Standing:
    evaluations = [trace.evaluation for trace in contest.traces[name].values() if trace.evaluation]
    good = [e.performance for e in evaluations if e.performance]
    bad = [e for e in evaluations if e.status is not EvaluationStatus.PASSED]
    flags = sorted({flag for e in evaluations for flag in e.flags})
    unranked = sorted(
        {flag for e in evaluations if not e.is_ranked(options.allow_flags) for flag in e.flags} & UNRANKED_FLAGS
    )
    is_ranked = not bad and not unranked
    baseline, over_baseline = _over_baseline(contest, name, options)
    latencies = [p.latency_ms for p in good]
    fractions = [fraction for p in good if (fraction := light_of(p).fraction) is not None]
    author, language = _source(trace_set, name)
    return Standing(
        definition=contest.definition,
        hardware=contest.hardware,
        solution=name,
        author=author,
        language=language,
        passed=len(good),
        total=len(evaluations),
        speedup=_mean(contest.speedups(name)) if is_ranked else None,
        baseline=baseline,
        baseline_speedup=over_baseline if is_ranked else None,
        win_at={f"{factor:g}": contest.win_at(name, factor) for factor in options.win_factors},
        fast_area=statistics.fmean(contest.fast_curve(name)),
        attainable_fraction=statistics.median(fractions) if fractions else None,
        latency_ms=(min(latencies), max(latencies)) if latencies else None,
        statuses=dict(Counter(str(e.status) for e in evaluations)),
        flags=tuple(flags),
        complaint=f"{bad[0].status}: {complaint(bad[0])}" if bad else _unranked(unranked),
    )


def _over_baseline(contest: Contest, name: str, options: Options) -> tuple[str | None, float | None]:
    """The baseline that most of a solution's traces are held against, and the speedup over it."""
    found = contest.baseline_speedups(name, options.baseline)
    if not found:
        return None, None
    baseline = max(found, key=lambda each: len(found[each]))
    return baseline, _mean(found[baseline])


def _mean(speedups: Sequence[float]) -> float | None:
    return statistics.geometric_mean(speedups) if speedups else None


def _unranked(flags: list[str]) -> str:
    return f"not ranked, for it is flagged: {', '.join(flags)}" if flags else ""


def _source(trace_set: TraceSet, name: str) -> tuple[str, str]:
    """A solution's author and language, or ``?`` where its file is gone or bad: its traces count all the same."""
    try:
        solution = trace_set.get_solution(name)
    except InvalidRecord:
        return "?", "?"
    return (solution.author, str(solution.spec.language)) if solution else ("?", "?")


def _rank(standing: Standing) -> tuple[bool, float, int, float, str]:
    speedup = standing.speedup
    wins = max(standing.win_at.values(), default=0.0)
    return (speedup is None, -(speedup or 0.0), -standing.passed, -wins, standing.solution)


def _performance(trace: Trace) -> Performance | None:
    return trace.evaluation.performance if trace.evaluation else None


def _best(winner: Trace) -> Best:
    assert winner.evaluation is not None
    assert winner.evaluation.performance is not None
    performance = winner.evaluation.performance
    reference = performance.reference_latency_ms
    return Best(
        definition=winner.definition,
        workload=winner.workload.uuid,
        axes=dict(winner.workload.axes),
        solution=str(winner.solution),
        speedup=speedup_of(performance),
        latency_ms=performance.latency_ms,
        interval_ms=interval_of(performance),
        reference_latency_ms=reference if 0 < reference < float("inf") else None,
        attainable_fraction=light_of(performance).fraction,
        hardware=winner.evaluation.environment.hardware,
    )
