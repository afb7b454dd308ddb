"""Speedups weighted by traffic: the time that an engine's traced calls take with the reference and with each solution.

With c the calls of a workload, and t its latency, the total of a solution is the sum of c * t over the workloads, and
its weighted speedup is the total of the reference divided by its own. The latencies of the reference are those that
were timed beside the solution. `fib_schema.traffic` has the calls: those of a size and layout are divided evenly among
the workloads of the definition that any solution was tried on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import attrs
from fib_schema import FibError, Problem, TraceSet
from fib_schema.traffic import FOLDER, load_traffic

from .leaderboard import Entry, entries, mark_imprecise
from .ratios import UNKNOWN, Outcome, Ratio, weighted_mean_of
from .results import DeviceResults, Options, group_results
from .trace_fields import shown_latency_of


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
class WeightedEntry:
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
    speedup_interval: tuple[float, float] | None
    speedup_text: str
    """The number with its interval, or ``noise``, ``imprecise``, ``not comparable``, ``-``."""
    problem: str
    """See `Entry.problem`."""
    rank_value: float | None = attrs.field(default=None, repr=False)
    """The number by which ranked solutions are ordered: the speedup, or 1 for noise."""


@attrs.frozen
class WeightedTotal:
    """The traced calls of all definitions on one device, with the reference and with the best solutions."""

    hardware: str
    definitions: int
    """Number of definitions with a ranked solution whose speedup is a number or noise."""
    calls: float
    reference_ms: float
    best_ms: float


@attrs.frozen
class WeightedSummary:
    """The traced traffic with the reference and with each solution."""

    entries: tuple[WeightedEntry, ...]
    totals: tuple[WeightedTotal, ...]
    uncounted: tuple[str, ...]
    """Definitions with traces for which no calls were counted."""
    problems: tuple[Problem, ...]
    """Files of counts that could not be read."""

    def to_plain(self) -> dict[str, Any]:
        """As plain objects, for JSON."""
        return {
            "entries": [attrs.asdict(entry) for entry in self.entries],
            "totals": [attrs.asdict(total) for total in self.totals],
            "uncounted": list(self.uncounted),
        }


def summarise_weighted(trace_set: TraceSet, options: Options | None = None) -> WeightedSummary:
    """Weight the workloads of each definition by their calls.

    Raises:
        NoTraffic: No definition that has traces has counted calls.
    """
    options = options or Options()
    traffic = load_traffic(trace_set.root or "")
    found: list[WeightedEntry] = []
    uncounted: dict[str, None] = {}
    for results in group_results(trace_set, options):
        counted = traffic.definitions.get(results.definition)
        calls = {} if counted is None else counted.calls_by_workload(results.workloads.values())
        if counted is None or not any(calls.values()):
            uncounted[results.definition] = None
            continue
        rows = entries(trace_set, results, options)
        found += sorted((_weighted(row, results, calls, counted.calls) for row in rows), key=_order)
    if not found:
        raise NoTraffic(str(trace_set.root))
    return WeightedSummary(tuple(found), tuple(_totals(found)), tuple(uncounted), traffic.problems)


def _weighted(entry: Entry, results: DeviceResults, calls: Mapping[str, float], all_calls: int) -> WeightedEntry:
    compared: list[tuple[Ratio, float, float]] = []
    for uuid, trace in results.traces[entry.solution].items():
        latency_ms = None if trace.evaluation is None else shown_latency_of(trace.evaluation)
        ratio = results.speedup(trace)
        if calls.get(uuid) and latency_ms is not None and ratio.outcome is not Outcome.UNKNOWN:
            compared.append((ratio, calls[uuid], latency_ms))
    is_shown = not entry.problem and bool(compared)
    speedup = _weighted_speedup(compared, entry.labels) if is_shown else UNKNOWN
    counted = sum(count for _, count, _ in compared)
    solution_ms = sum(count * latency_ms for _, count, latency_ms in compared)
    reference_ms = sum(count * latency_ms * (ratio.point or 0.0) for ratio, count, latency_ms in compared)
    return WeightedEntry(
        definition=entry.definition,
        hardware=entry.hardware,
        solution=entry.solution,
        is_ranked=entry.is_ranked,
        calls=counted,
        share=counted / all_calls,
        reference_ms=reference_ms if is_shown else None,
        solution_ms=solution_ms if is_shown else None,
        speedup=speedup.value,
        speedup_interval=speedup.interval,
        speedup_text=speedup.text,
        problem=entry.problem,
        rank_value=speedup.rank_value,
    )


def _weighted_speedup(compared: Collection[tuple[Ratio, float, float]], labels: Collection[str]) -> Ratio:
    """The quotient of totals: the mean of the ratios, weighted by the time that a solution takes for the calls."""
    ratios = [ratio for ratio, _, _ in compared]
    weights = [count * latency_ms for _, count, latency_ms in compared]
    return mark_imprecise(weighted_mean_of(ratios, weights), ratios, labels)


def _order(entry: WeightedEntry) -> tuple[bool, float, bool, float, str]:
    """Ranked ones first; a solution that ran on fewer of the calls does not precede one that ran on more."""
    value = entry.rank_value if entry.is_ranked else None
    return (not entry.is_ranked, -round(entry.share, 9), value is None, -(value or 0.0), entry.solution)


def _totals(rows: Iterable[WeightedEntry]) -> list[WeightedTotal]:
    """Totals by device; the best solution of a definition is its first ranked one."""
    best: dict[tuple[str, str], WeightedEntry] = {}
    for row in rows:
        if row.is_ranked and row.rank_value is not None:
            best.setdefault((row.hardware, row.definition), row)
    totals = []
    for hardware in dict.fromkeys(hardware for hardware, _ in best):
        chosen = [row for (device, _), row in best.items() if device == hardware]
        reference_ms, best_ms = (
            sum(row.reference_ms or 0.0 for row in chosen),
            sum(r.solution_ms or 0.0 for r in chosen),
        )
        totals.append(WeightedTotal(hardware, len(chosen), sum(row.calls for row in chosen), reference_ms, best_ms))
    return totals
