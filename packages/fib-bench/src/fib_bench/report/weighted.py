"""Speedups weighted by traffic: the time that an engine's traced calls take with the reference and with each solution.

With c the calls of a workload, and t its latency, the total of a solution is the sum of c * t over the workloads, and
its weighted speedup is the total of the reference divided by its own. The latencies of the reference are those that
were timed beside the solution. `fib_schema.traffic` has the calls: those of a size and layout are divided evenly among
the workloads of the definition that any solution was tried on.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from fib_schema import FibError, Problem, TraceSet
from fib_schema.trace_facts import shown_latency_of
from fib_schema.traffic import FOLDER, load_traffic

from .leaderboard import DeviceResults, LeaderboardRow, Options, group_results, mark_imprecise, ranked_rows
from .ratios import UNKNOWN, Bounds, Outcome, mean_of


@attrs.frozen
class NoTraffic(FibError, ValueError):
    """A data set without counts of calls for the definitions that have traces."""

    root: str

    def __str__(self) -> str:
        return (
            f"no counted calls of benchmarked workloads in {self.root}/{FOLDER}, so they cannot be weighted; "
            "trace an engine into the data set with fib-tracer, or leave out --weighted"
        )


@attrs.frozen
class WeightedRow:
    """One solution of a definition over the workloads that have traffic, on one device."""

    definition: str
    hardware: str
    solution: str
    is_ranked: bool
    """Whether every workload passed, without a flag that keeps a trace out of rankings."""
    calls: float
    """Calls of the workloads that are compared: those that the solution passed, with a reference latency."""
    share: float
    """Share of all traced calls of the definition."""
    reference_ms: float | None
    """Time that these calls take with the reference; None if nothing is compared."""
    solution_ms: float | None
    """Time that they take with the solution."""
    speedup: float | None
    """The quotient of both; None where it is not a number, see `speedup_text`."""
    speedup_interval: Bounds | None
    speedup_text: str
    """The number with its interval, or ``noise``, ``imprecise``, ``not comparable``, ``-``."""
    problem: str
    """See `LeaderboardRow.problem`."""
    rank_value: float | None = attrs.field(default=None, repr=False)
    """The number by which ranked solutions are ordered: the speedup, or 1 for noise."""


@attrs.frozen
class WeightedSummary:
    """The traced traffic with the reference and with each solution."""

    entries: tuple[WeightedRow, ...]
    """By definition and device; ranked ones first, and those that ran on more of the calls."""
    uncounted: tuple[str, ...]
    """Definitions with traces for which no calls were counted."""
    problems: tuple[Problem, ...]
    """Files of counts that could not be read."""


def summarise_weighted(trace_set: TraceSet, options: Options | None = None) -> WeightedSummary:
    """Weight the workloads of each definition by their calls.

    Raises:
        NoTraffic: No definition that has traces has counted calls.
    """
    options = options or Options()
    traffic = load_traffic(trace_set.root or "")
    found: list[WeightedRow] = []
    uncounted: dict[str, None] = {}
    for results in group_results(trace_set, options):
        counted = traffic.definitions.get(results.definition)
        calls = {} if counted is None else counted.calls_by_workload(results.workloads.values())
        if counted is None or not any(calls.values()):
            uncounted[results.definition] = None
            continue
        rows = ranked_rows(trace_set, results, options)
        found += sorted((_weighted(row, results, calls, counted.calls) for row in rows), key=_order)
    if not found:
        raise NoTraffic(str(trace_set.root))
    return WeightedSummary(tuple(found), tuple(uncounted), traffic.problems)


def _weighted(row: LeaderboardRow, results: DeviceResults, calls: Mapping[str, float], all_calls: int) -> WeightedRow:
    ratios, times, counted, reference_ms = [], [], 0.0, 0.0
    for uuid, trace in results.traces[row.solution].items():
        latency_ms = None if trace.evaluation is None else shown_latency_of(trace.evaluation)
        ratio = results.speedup(trace)
        if calls.get(uuid) and latency_ms is not None and ratio.outcome is not Outcome.UNKNOWN:
            ratios.append(ratio)
            times.append(calls[uuid] * latency_ms)
            counted += calls[uuid]
            reference_ms += times[-1] * (ratio.point or 0.0)
    is_shown = not row.problem and bool(ratios)
    # the quotient of totals is the mean of the ratios, weighted by the time that the solution takes for the calls
    speedup = mark_imprecise(mean_of(ratios, times), ratios, row.labels) if is_shown else UNKNOWN
    return WeightedRow(
        definition=row.definition,
        hardware=row.hardware,
        solution=row.solution,
        is_ranked=row.is_ranked,
        calls=counted,
        share=counted / all_calls,
        reference_ms=reference_ms if is_shown else None,
        solution_ms=sum(times) if is_shown else None,
        speedup=speedup.value,
        speedup_interval=speedup.interval,
        speedup_text=speedup.text,
        problem=row.problem,
        rank_value=speedup.rank_value,
    )


def _order(row: WeightedRow) -> tuple[bool, float, bool, float, str]:
    """Ranked ones first; a solution that ran on fewer of the calls does not precede one that ran on more."""
    value = row.rank_value if row.is_ranked else None
    return (not row.is_ranked, -round(row.share, 9), value is None, -(value or 0.0), row.solution)
