"""The fastest ranked solution of each workload, on each device."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs
from fib_schema import Trace, TraceSet

from .ratios import Ratio
from .results import DeviceResults, Options, group_results
from .trace_fields import bounds_of, interval_of, is_usable, labels_of, latency_of, light_of, timed_by


@attrs.frozen
class Best:
    """The fastest passing solution on one workload, on one device."""

    definition: str
    workload: str
    axes: Mapping[str, int]
    solution: str
    speedup: float | None
    """Over the reference; None where it is not a number, see `speedup_text`."""
    speedup_interval: tuple[float, float] | None
    speedup_text: str
    """The number with its interval, or ``noise``, ``imprecise``, ``not comparable``, ``-``."""
    latency_ms: float
    interval_ms: tuple[float, float] | None
    bounds_ms: tuple[float, float] | None
    """The interval, widened by the uncertainty of the clock."""
    reference_latency_ms: float | None
    attainable_fraction: float | None
    hardware: str
    timed_by: str
    """Timing methods; empty for ``linked`` alone."""
    labels: tuple[str, ...]
    """Flags that every table shows, such as ``unranked: cpu timing``."""


def best(
    trace_set: TraceSet,
    definitions: Collection[str] | None = None,
    *,
    allow_flags: Collection[str] = (),
) -> list[Best]:
    """The fastest ranked solution that passed on every workload, on each device.

    Args:
        trace_set: The data set.
        definitions: Only these.
        allow_flags: Flags (of `fib_schema.UNRANKED_FLAGS`, or `fib_bench.flags.CPU_TIMING`) with which a trace counts
            all the same.

    Raises:
        UnknownName: A definition is not in the set.
    """
    found: list[Best] = []
    for results in group_results(trace_set, Options(allow_flags=allow_flags), definitions):
        winners: dict[str, Trace] = {}
        for group in results.traces.values():
            for uuid, trace in group.items():
                if uuid not in winners and latency_of(trace, allow_flags) == results.shortest_ms.get(uuid, -1.0):
                    winners[uuid] = trace
        rows = [_best(winners[uuid], results) for uuid in results.workloads if uuid in winners]
        found += sorted(rows, key=lambda row: sorted(row.axes.items()))
    return found


def _best(winner: Trace, results: DeviceResults) -> Best:
    assert winner.evaluation is not None
    assert winner.evaluation.performance is not None
    performance = winner.evaluation.performance
    reference = performance.reference_latency_ms
    speedup: Ratio = results.speedup(winner)
    return Best(
        definition=winner.definition,
        workload=winner.workload.uuid,
        axes=dict(winner.workload.axes),
        solution=str(winner.solution),
        speedup=speedup.value,
        speedup_interval=speedup.interval,
        speedup_text=speedup.text,
        latency_ms=performance.latency_ms,
        interval_ms=interval_of(performance),
        bounds_ms=bounds_of(performance),
        reference_latency_ms=reference if is_usable(reference) else None,
        attainable_fraction=light_of(performance).fraction,
        hardware=winner.evaluation.environment.hardware,
        timed_by=timed_by(performance),
        labels=labels_of(winner.evaluation),
    )
