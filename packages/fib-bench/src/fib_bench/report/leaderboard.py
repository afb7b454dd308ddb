"""Leaderboards: the solutions of each definition in order, the totals of a data set, and the ranking of authors."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs
from fib_schema import Evaluation, EvaluationStatus, InvalidRecord, ScoringError, Trace, TraceSet, UnknownName
from fib_schema.display import counted

from ..flags import CPU_TIMING, INTERPRETED
from .failures import Failure, group_failures
from .ratios import UNKNOWN, Outcome, Ratio, mean_of
from .results import DeviceResults, Options, failure_text, group_results
from .trace_fields import blocking_flags, bounds_of, is_ranked, labels_of, light_of, shown_latency_of, timed_by


@attrs.frozen
class Entry:
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
    speedup: float | None
    """Geometric mean of the speedups over the reference; None where it is not a number, see `speedup_text`."""
    speedup_interval: tuple[float, float] | None
    speedup_text: str
    """The number with its interval, or ``noise``, ``imprecise``, ``not comparable``, ``-``."""
    baseline: str | None
    baseline_speedup: float | None
    """The same speedup, over the baseline."""
    baseline_speedup_interval: tuple[float, float] | None
    baseline_speedup_text: str
    fast_p: Mapping[str, float]
    """By the factor p, as it is printed: the share of workloads on which it passes and is more than p times as fast as
    the reference."""
    fast_area: float
    attainable_fraction: float | None
    """The median share of the attainable speed, over workloads where it is known."""
    latency_ms: tuple[float, float] | None
    """The shortest and the longest of the median latencies of passing workloads; None for interpreted kernels."""
    latency_bounds_ms: tuple[float, float] | None
    """The interval of the latency, with the uncertainty of the clock, where a single workload passed; else None."""
    timed_by: tuple[str, ...]
    """Timing methods, without ``linked``."""
    labels: tuple[str, ...]
    """Flags that every table shows, such as ``unranked: cpu timing``."""
    statuses: Mapping[str, int]
    flags: tuple[str, ...]
    problem: str
    """The status and the error line of the first failure, or why the solution is not ranked."""
    failures: tuple[Failure, ...]
    """All failures, those of one cause together."""
    rank_value: float | None = attrs.field(default=None, repr=False)
    """The number by which ranked solutions are ordered: the speedup, or 1 for noise."""


@attrs.frozen
class Author:
    """An author's score, as `fib_schema.TraceSet.rank_authors` computes it."""

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
    leaderboard: tuple[Entry, ...]
    authors: tuple[Author, ...]
    authors_note: str
    """Reason that authors, or definitions in their ranking, are missing; empty if none are."""


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
        leaderboard=tuple(leaderboard(trace_set, options)),
        authors=authors,
        authors_note=note,
    )


def rank_authors(trace_set: TraceSet, options: Options) -> tuple[tuple[Author, ...], str]:
    """The authors by score, and why some or all are missing."""
    try:
        ranked = _without_cpu_timing(trace_set, options)
        found = ranked.summary(options.baseline_author, allow_flags=options.allow_flags)
    except (ScoringError, InvalidRecord) as error:
        return (), f"authors are not ranked: {error}"
    authors = tuple(Author(name, score.avg_speedup, score.workload_count) for name, score in found.rankings)
    if not found.unranked:
        return authors, ""
    needed = f"exactly one solution by {options.baseline_author!r}"
    if not authors:
        return (), f"authors are not ranked: no definition has {needed} (choose with --baseline-author)"
    return authors, f"the ranking of authors leaves out {counted(len(found.unranked), 'definition')} without {needed}"


def _without_cpu_timing(trace_set: TraceSet, options: Options) -> TraceSet:
    """The set without traces that are unranked because of fib-bench's own flags, which fib-schema does not know."""

    def is_kept(trace: Trace) -> bool:
        return trace.evaluation is None or is_ranked(trace.evaluation, options.allow_flags)

    if all(map(is_kept, (trace for group in trace_set.traces.values() for trace in group))):
        return trace_set
    return TraceSet(
        definitions=trace_set.definitions,
        solutions=trace_set.solutions,
        workloads=trace_set.workloads,
        traces={name: [trace for trace in group if is_kept(trace)] for name, group in trace_set.traces.items()},
    )


def leaderboard(
    trace_set: TraceSet, options: Options | None = None, *, allow_flags: Collection[str] = ()
) -> list[Entry]:
    """The solutions of every definition that has traces: the fastest ranked ones first.

    Of several traces of one solution on one workload the latest counts.

    Raises:
        UnknownName: The baseline is neither in the set nor in a trace.
    """
    options = options or Options(allow_flags=allow_flags)
    rows = [row for results in group_results(trace_set, options) for row in entries(trace_set, results, options)]
    check_baseline(trace_set, options, rows)
    return rows


def entries(trace_set: TraceSet, results: DeviceResults, options: Options) -> list[Entry]:
    """The solutions of one definition on one device, the best first. Unranked ones are not ordered by latency."""
    return sorted((_entry(trace_set, results, name, options) for name in results.traces), key=_order)


def check_baseline(trace_set: TraceSet, options: Options, rows: Iterable[Entry]) -> None:
    """Reject an unknown baseline.

    Raises:
        UnknownName: It is neither in the set nor in a trace.
    """
    name, known = options.baseline, trace_set.solution_names()
    if name is not None and name not in known and not any(name in (row.solution, row.baseline) for row in rows):
        raise UnknownName("solution", name, known)


def _entry(trace_set: TraceSet, results: DeviceResults, name: str, options: Options) -> Entry:
    evaluations = [trace.evaluation for trace in results.traces[name].values() if trace.evaluation]
    good = [e.performance for e in evaluations if e.performance]
    bad = [e for e in evaluations if e.status is not EvaluationStatus.PASSED]
    blocking = {flag for e in evaluations for flag in blocking_flags(e, options.allow_flags)}
    is_shown = not bad and not blocking - {CPU_TIMING}
    labels = _labels(evaluations)
    speedup = _mean_speedup(results.speedups(name), labels) if is_shown else UNKNOWN
    baseline, over_baseline = _over_baseline(results, name, options) if is_shown else (None, UNKNOWN)
    latencies = [latency for e in evaluations if (latency := shown_latency_of(e)) is not None]
    fractions = [fraction for p in good if (fraction := light_of(p).fraction) is not None]
    author, language = _source(trace_set, name)
    return Entry(
        definition=results.definition,
        hardware=results.hardware,
        solution=name,
        author=author,
        language=language,
        passed=len(good),
        total=len(evaluations),
        is_ranked=not bad and not blocking,
        speedup=speedup.value,
        speedup_interval=speedup.interval,
        speedup_text=speedup.text,
        baseline=baseline,
        baseline_speedup=over_baseline.value,
        baseline_speedup_interval=over_baseline.interval,
        baseline_speedup_text=over_baseline.text,
        fast_p={
            f"{p:g}": share
            for p, share in zip(options.fast_factors, results.fast_curve(name, options.fast_factors), strict=True)
        },
        fast_area=statistics.fmean(results.fast_curve(name)),
        attainable_fraction=statistics.median(fractions) if fractions else None,
        latency_ms=(min(latencies), max(latencies)) if latencies else None,
        latency_bounds_ms=bounds_of(good[0]) if len(good) == len(latencies) == 1 else None,
        timed_by=_methods(evaluations),
        labels=labels,
        statuses=dict(Counter(str(e.status) for e in evaluations)),
        flags=tuple(sorted({flag for e in evaluations for flag in e.flags})),
        problem=failure_text(bad[0]) if bad else _unranked(blocking),
        failures=group_failures(results.traces[name].values()),
        rank_value=speedup.rank_value,
    )


def _mean_speedup(ratios: Sequence[Ratio], labels: Collection[str]) -> Ratio:
    """The mean over workloads."""
    return mark_imprecise(mean_of(ratios), ratios, labels)


def mark_imprecise(mean: Ratio, ratios: Sequence[Ratio], labels: Collection[str]) -> Ratio:
    """A mean that is imprecise if one ratio is, on the CPU.

    An interval on the CPU does not bound the error that other programs cause, so a mean must not average it out.
    """
    if CPU_TIMING in labels and any(ratio.outcome is Outcome.IMPRECISE for ratio in ratios):
        return attrs.evolve(mean, is_imprecise=True)
    return mean


def _methods(evaluations: Iterable[Evaluation]) -> tuple[str, ...]:
    """The timing methods of the latencies that are shown, without ``linked``."""
    timed = [e.performance for e in evaluations if e.performance and shown_latency_of(e) is not None]
    return tuple(sorted({words for performance in timed if (words := timed_by(performance))}))


def _labels(evaluations: Iterable[Evaluation]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(label for e in evaluations for label in labels_of(e)))


def _over_baseline(results: DeviceResults, name: str, options: Options) -> tuple[str | None, Ratio]:
    """The baseline that most traces of a solution are compared with, and the speedup over it."""
    found = results.baseline_speedups(name, options.baseline)
    if not found:
        return None, UNKNOWN
    baseline = max(found, key=lambda each: len(found[each]))
    return baseline, mean_of(found[baseline])


def _unranked(blocking: Collection[str]) -> str:
    """Reason for not ranking a solution that passed; labels that tables show anyway are not repeated."""
    flags = sorted(set(blocking) - {CPU_TIMING, INTERPRETED})
    return f"unranked, flagged: {', '.join(flags)}" if flags else ""


def _source(trace_set: TraceSet, name: str) -> tuple[str, str]:
    """A solution's author and language, or ``?`` if its file is missing or invalid: its traces count all the same."""
    try:
        solution = trace_set.get_solution(name)
    except InvalidRecord:
        return "?", "?"
    return (solution.author, str(solution.spec.language)) if solution else ("?", "?")


def _order(entry: Entry) -> tuple[bool, bool, float, int, float, str]:
    value = entry.rank_value if entry.is_ranked else None
    return (not entry.is_ranked, value is None, -(value or 0.0), -entry.passed, -entry.fast_area, entry.solution)
