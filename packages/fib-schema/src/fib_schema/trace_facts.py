"""Facts of traces: the one reading of what traces say, for the store, reports, resumed runs and selection.

`latest` keeps the latest evaluation of each solution on each workload and device. The other readings read one
evaluation: its timing with the interval, the timings of the reference and of the baseline that were measured beside
it, and the flags that disqualify it. Fields that are missing or invalid are None.

The judge (`fib_bench.judge.record`) writes these fields into the ``extra`` mappings; traces of other tools have few.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeGuard

import attrs

from .definition import Definition
from .errors import AxisError, InvalidField
from .strides import LAYOUT, stated_strides, workload_strides
from .trace import UNRANKED_FLAGS, Evaluation, Performance, Trace, Workload

CPU_TIMING = "unranked: cpu timing"
"""The worker itself read the clock, on the CPU; such a latency ranks nobody unless a report includes it."""
FIXED_INPUTS = "fixed_inputs"
"""All calls had the same input values."""
INTERPRETED = "interpreted"
"""A Triton or Helion kernel ran in the interpreter: outputs were checked, the latency has no meaning."""
QUICK = "quick"
"""The run had fewer checks and one short timing; such a latency ranks nobody and replaces no other."""
OLDER_TIMING = "unranked: older timing"
"""Reports set it where traces of the same device and definition were timed by the present methods; no trace has it."""

NOT_RANKED = UNRANKED_FLAGS | {CPU_TIMING, INTERPRETED, OLDER_TIMING}
"""Flags that keep an evaluation out of the rankings of reports."""
NOT_ROUTED = UNRANKED_FLAGS | {FIXED_INPUTS, INTERPRETED}
"""Flags with which a solution does not serve calls."""

LatestTraces = dict[str, dict[str, dict[str, Trace]]]
"""Traces by hardware, uuid of the workload, and solution."""
_NOTHING: Mapping[str, Any] = {}
_METHODS = {"handshake": "device", "eager": "call", "cpu": "call"}
_KINDS = ("device", "call", "older")


@attrs.frozen
class Timing:
    """One measured latency in milliseconds, with its precision where known."""

    latency_ms: float
    interval_ms: tuple[float, float] | None = None
    """The 95 % confidence interval of the median; it contains the latency."""
    uncertainty_ms: float = 0.0
    """The uncertainty of the clock, which adds to the interval on both sides."""
    method: str | None = None
    """``handshake``, ``eager`` or ``cpu``; another one is older, and its latency another quantity."""
    call_ms: float | None = None
    """The time that an eager caller waits for one call."""
    call_uncertainty_ms: float = 0.0

    @property
    def kind(self) -> str | None:
        """The kind of latency; those of different kinds are neither divided nor ordered. None if it is not stated."""
        if self.method is None:
            return None
        return _METHODS.get(self.method, "older")

    @property
    def of_call(self) -> Timing | None:
        """The call latency alone; None where the judge's clock did not measure it."""
        if self.kind == "call":
            return self
        if self.call_ms is None or self.kind == "older":
            return None
        return Timing(self.call_ms, uncertainty_ms=self.call_uncertainty_ms, method="eager")

    def is_comparable(self, other: Timing) -> bool:
        """Whether both are latencies of one kind, as far as traces tell."""
        return None in (self.kind, other.kind) or self.kind == other.kind

    @property
    def bounds_ms(self) -> tuple[float, float] | None:
        """The interval, widened by the uncertainty of the clock: the lower end as a ratio, which stays plausible.

        None if a trace states neither.
        """
        if self.interval_ms is None and not self.uncertainty_ms:
            return None
        low, high = self.interval_ms or (self.latency_ms, self.latency_ms)
        return low / (1 + self.uncertainty_ms / low), high + self.uncertainty_ms


@attrs.frozen
class Baseline:
    """A baseline that was timed interleaved with a solution."""

    solution: str
    timing: Timing | None = None
    speedup: float | None = None
    """The baseline's latency / the solution's."""


def is_usable(number: object) -> TypeGuard[float]:
    """Whether a value is a positive, finite number: a latency or a speedup that can be compared."""
    return type(number) in (int, float) and 0 < number <= sys.float_info.max  # type: ignore[operator]


def extra_group(extra: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    """A mapping among extra fields, such as ``timing``; empty if there is none."""
    group = None if extra is None else extra.get(name)
    return group if isinstance(group, Mapping) else _NOTHING


def timing_of(performance: Performance) -> Timing | None:
    """The timing of the solution; None if its latency is not usable."""
    return _timing(performance.latency_ms, extra_group(performance.extra, "timing"))


def reference_timing_of(performance: Performance) -> Timing | None:
    """The timing of the reference; None if it was not timed."""
    return _timing(performance.reference_latency_ms, extra_group(performance.extra, "reference_timing"))


def baseline_of(performance: Performance) -> Baseline | None:
    """The baseline that was timed interleaved with the solution; None if there was none."""
    given = extra_group(performance.extra, "baseline")
    name, speedup = given.get("solution"), given.get("speedup_factor")
    if not isinstance(name, str):
        return None
    timing = _timing(given.get("latency_ms"), extra_group(given, "timing"))
    return Baseline(name, timing, float(speedup) if is_usable(speedup) else None)


def speedup_of(performance: Performance) -> float | None:
    """The speedup over the reference; None if it is not usable."""
    return float(performance.speedup_factor) if is_usable(performance.speedup_factor) else None


def speedup_interval_of(performance: Performance) -> tuple[float, float] | None:
    """The range of the speedup over the reference in several processes; None if a trace states none."""
    given = extra_group(performance.extra, "reference_timing").get("speedup_interval")
    return _interval(given, performance.speedup_factor)


def _timing(latency_ms: object, given: Mapping[str, Any]) -> Timing | None:
    if not is_usable(latency_ms):
        return None
    if not given:
        return Timing(float(latency_ms))
    uncertainty, method = given.get("uncertainty_ms"), given.get("method")
    call, call_uncertainty = given.get("call_ms"), given.get("call_uncertainty_ms")
    is_exact = uncertainty is None or (type(uncertainty) in (int, float) and uncertainty == 0)
    has_valid_uncertainty = is_exact or is_usable(uncertainty)
    return Timing(
        latency_ms=float(latency_ms),
        interval_ms=_interval(given.get("interval_ms"), latency_ms) if has_valid_uncertainty else None,
        uncertainty_ms=float(uncertainty) if is_usable(uncertainty) else 0.0,
        method=method if isinstance(method, str) else None,
        call_ms=float(call) if is_usable(call) else None,
        call_uncertainty_ms=float(call_uncertainty) if is_usable(call_uncertainty) else 0.0,
    )


def _interval(given: object, latency_ms: float) -> tuple[float, float] | None:
    """An interval that does not contain the latency counts as none: it could make a slow solution look fast."""
    if not isinstance(given, list | tuple) or len(given) != 2:
        return None
    low, high = given
    is_valid = is_usable(low) and is_usable(high) and low <= latency_ms <= high
    return (float(low), float(high)) if is_valid else None


def disqualifying_flags(
    evaluation: Evaluation, allow_flags: Collection[str] = (), *, among: Collection[str] = NOT_RANKED
) -> tuple[str, ...]:
    """The flags of an evaluation among `NOT_RANKED`, `NOT_ROUTED` or `UNRANKED_FLAGS` that are not allowed."""
    if evaluation.extra is None or "flags" not in evaluation.extra:
        return ()
    return tuple(flag for flag in evaluation.flags if flag in among and flag not in allow_flags)


def latency_of(
    trace: Trace | None, allow_flags: Collection[str] = (), *, among: Collection[str] = NOT_RANKED
) -> float | None:
    """The latency in milliseconds of a trace that passed and has no `disqualifying_flags`; else None."""
    evaluation = trace.evaluation if trace is not None else None
    if evaluation is None or disqualifying_flags(evaluation, allow_flags, among=among):
        return None
    return shown_latency_of(evaluation)


def shown_latency_of(evaluation: Evaluation) -> float | None:
    """The latency in milliseconds of an evaluation that passed, ranked or not; interpreted kernels have none."""
    performance = evaluation.performance
    if performance is None or not is_usable(performance.latency_ms) or INTERPRETED in evaluation.flags:
        return None
    return float(performance.latency_ms)


def fastest(
    traces: Iterable[Trace], allow_flags: Collection[str] = (), *, among: Collection[str] = NOT_RANKED
) -> Trace | None:
    """The first trace with the shortest latency, see `latency_of`; None if no trace has one.

    Device latencies come before call latencies, and both before older ones: kinds are not compared.
    """
    best, shortest = None, (len(_KINDS), math.inf)
    for trace in traces:
        latency = latency_of(trace, allow_flags, among=among)
        if latency is None or trace.evaluation is None or trace.evaluation.performance is None:
            continue
        if (place := (_KINDS.index(kind_of(trace.evaluation.performance)), latency)) < shortest:
            best, shortest = trace, place
    return best


def kind_of(performance: Performance) -> str:
    """The kind of a latency, see `Timing.kind`; one that states none counts as a device latency."""
    timing = timing_of(performance)
    return "device" if timing is None else timing.kind or "device"


def latest(traces: Iterable[Trace]) -> LatestTraces:
    """The latest evaluation of each solution on each workload and device, by timestamp, then by order.

    A trace of a quick run counts only where there is no other. Workload traces are left out. The traces are those of
    one definition, in the order of the files.
    """
    found: LatestTraces = {}
    for trace in traces:
        evaluation, solution = trace.evaluation, trace.solution
        if evaluation is None or solution is None:
            continue
        by_workload = found.setdefault(evaluation.environment.hardware, {})
        run = by_workload.setdefault(trace.workload.uuid, {})
        before = run.get(solution)
        if before is None or before.evaluation is None or _replaces(before.evaluation, evaluation):
            run[solution] = trace
    return found


def _replaces(before: Evaluation, after: Evaluation) -> bool:
    """Whether an evaluation replaces one that was appended before it."""
    if (was_quick := is_quick(before)) != is_quick(after):
        return was_quick
    return before.timestamp == after.timestamp or _instant(before.timestamp) <= _instant(after.timestamp)


def is_quick(evaluation: Evaluation | None) -> bool:
    """Whether an evaluation is of a quick run, which never replaces one of a full run."""
    return evaluation is not None and QUICK in evaluation.flags


@lru_cache(maxsize=10_000)
def _instant(timestamp: str) -> float:
    """Seconds since the epoch; an invalid timestamp sorts before all others."""
    try:
        parsed = datetime.fromisoformat(timestamp)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return -math.inf


def has_workload_layout(definition: Definition | None, workload: Workload, evaluation: Evaluation) -> bool:
    """Whether an evaluation states the layout of a workload, and therefore counts for it.

    Tools that do not know ``extra["layout"]`` measure contiguous inputs and state no layout. Such a trace says nothing
    about a workload with strides.

    The workload is that of the data set, which is more reliable than the copy in a trace. Without the definition,
    layouts are compared as they are written.
    """
    if LAYOUT not in (evaluation.extra or ()) and LAYOUT not in (workload.extra or ()):
        return True
    try:
        if definition is None:
            return stated_strides(evaluation.extra) == stated_strides(workload.extra)
        return workload_strides(definition, workload, evaluation) == workload_strides(definition, workload)
    except (AxisError, InvalidField):
        return False
