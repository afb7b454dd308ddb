"""Prediction: the time that routing saves in traffic that was traced, by the traces of its sizes.

An engine may gain less: less work of the device changes nothing where the engine waits for the host, and a solution
that is not called saves nothing. So compare `routed_calls` with the hits of `runtime.stats()`.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from fib_schema import TraceSet
from fib_schema.traffic import Traffic

from ..key import ApplyKeyFactory
from .rankings import Candidate
from .rules import WorkloadKeys
from .table import ApplyTable


@attrs.frozen
class Prediction:
    """The traced calls of one definition, and what solutions save of their time; in milliseconds of all calls."""

    definition: str
    calls: int
    routed_calls: float
    """Calls of sizes for which a solution is selected; those of one size are shared evenly among its workloads."""
    against: str = ""
    """The function whose time is that of the fallback: the reference, or a baseline."""
    fallback_ms: float = 0.0
    """The time of these by the fallback."""
    saved_ms: float = 0.0
    interval_ms: tuple[float, float] = (0.0, 0.0)
    """Of `saved_ms`, if all measurements err alike."""


def predict(
    table: ApplyTable, data_set: TraceSet, traffic: Traffic, hardware: str, *, captured: bool = False
) -> Iterator[Prediction]:
    """Predict for each definition with traffic; `captured` calls take the device's time, others what a caller waits."""
    for name, counted in traffic.definitions.items():
        found = Prediction(name, counted.calls, 0.0)
        rankings = table.rankings(name).get(hardware) if name in table.definitions else None
        if rankings is not None:
            keys = WorkloadKeys(ApplyKeyFactory.specialize(table.definition(name)))
            workloads = {trace.workload.uuid: trace.workload for trace in data_set.workloads.get(name, ())}
            for uuid, calls in counted.calls_by_workload(workloads.values()).items():
                key = keys.of(workloads[uuid])
                ranking = None if key is None else rankings.by_key.get(key.recorded)
                if ranking is None:
                    continue
                candidate = (ranking.of_captured() if captured else ranking).plain
                if candidate and candidate.fallback_ms is not None and (candidate.may_capture or not captured):
                    against = ", ".join(sorted({*found.against.split(", "), ranking.fallback} - {""}))
                    found = _with(attrs.evolve(found, against=against), calls, candidate, candidate.fallback_ms)
        yield found


def _with(found: Prediction, calls: float, candidate: Candidate, fallback_ms: float) -> Prediction:
    fast, slow = candidate.interval_ms or (candidate.latency_ms,) * 2
    least, most = candidate.fallback_interval_ms or (fallback_ms,) * 2
    low, high = found.interval_ms
    return attrs.evolve(
        found,
        routed_calls=found.routed_calls + calls,
        fallback_ms=found.fallback_ms + calls * fallback_ms,
        saved_ms=found.saved_ms + calls * (fallback_ms - candidate.latency_ms),
        interval_ms=(low + calls * (least - slow), high + calls * (most - fast)),
    )
