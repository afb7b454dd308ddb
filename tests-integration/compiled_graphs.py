"""Measurements in compiled graphs for the parts of a block: what `fib-apply warm` measures, with a baseline for each.

Part of `transformer_block`. The results are in the cache of fib-apply, where runtimes with these baselines find them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from fib_apply import ApplyConfig, ApplyKey, ApplyRuntime
from fib_apply.compiled_measurement import CompiledJob, measure
from fib_apply.compiled_times import CompiledTimes, CompiledTimesCache
from fib_apply.opaque_cost import OpaqueCost
from fib_apply.opaque_measurement import measure_opaque_cost
from fib_compile.device import hardware_from_device
from fib_schema import Definition


@attrs.frozen(kw_only=True)
class CompiledCall:
    """A call to measure."""

    definition: Definition
    axes: Mapping[str, int]
    values: Mapping[str, Any]
    """The inputs that are not made up, as numbers and lists."""
    baseline: str
    """The solution in torch that the selected one is compared with."""


def measure_compiled(root: Path, device: str, report: Any, calls: Sequence[CompiledCall], seconds: float) -> None:
    """Measure the cost of an opaque operator and the selected solution of each call, and write a table.

    Args:
        root: Of a data set with traces.
        device: ``cpu`` or ``cuda:0``.
        report: A `gpu_report.Report`.
        calls: What to measure.
        seconds: For all measurements.
    """
    hardware, deadline = hardware_from_device(device), time.monotonic() + seconds
    cost = measure_opaque_cost(hardware, device, seconds)
    counted = cost if isinstance(cost, OpaqueCost) else OpaqueCost.assumed(hardware)
    rows = [_row(root, device, call, counted, deadline) for call in calls]
    report.numbers["compiled_graphs"] = {"cost": f"{cost}", "rows": rows}
    header = ("definition", "axes", "solution", "result", "held by any graph", "held by a captured graph")
    report.table("Small compiled graphs, with the solution and with the baseline", header, rows)
    report.say(f"On this host, {counted}" + ("." if counted is cost else f"; not measured: {cost}."))
    report.say()


def _row(root: Path, device: str, call: CompiledCall, cost: OpaqueCost, deadline: float) -> tuple[str, ...]:
    """One line of the table; the times are kept."""
    hardware, key = hardware_from_device(device), ApplyKey(call.axes)
    table = ApplyRuntime(root, ApplyConfig(baseline=call.baseline)).table
    name = table.for_hardware(hardware).match_solution(call.definition.name, key)
    where = call.definition.name, f"{key}"
    if name is None:
        return *where, "-", "no solution is faster than the baseline", "-", "-"
    solution, baseline = table.solution(name), table.solution(call.baseline)
    job = CompiledJob(call.definition, solution, (key,), hardware, device, {key.encode: call.values}, baseline)
    outcome = measure(job, max(0.0, deadline - time.monotonic()))[key]
    print(f"  {call.definition.name} {key}: {outcome}", flush=True)
    if not isinstance(outcome, CompiledTimes):
        return *where, name, outcome, "-", "-"
    CompiledTimesCache.in_folder().save(call.definition, solution, key, hardware, outcome, baseline)
    held = ("yes" if outcome.is_worth_it(cost, is_captured=is_captured) else "no" for is_captured in (False, True))
    return *where, name, f"{outcome}", *held
