"""Traces grouped for comparison: one definition on one device, the latest trace of each solution on each workload.

Traces that measured another layout than that of their workload do not count.

Leaderboards, tables of the fastest solutions and pages are made from these groups. The workloads of a group are those
that any solution was tried on, and shares are always shares of all of them:

- ``fast_p``: on which the solution passes and its speedup over the reference is greater than p; ``fast_1`` is being
  correct and faster than the reference. Source: KernelBench (Ouyang et al., 2025).
  Its *area* is the mean over 61 values of p from 0.1 to 100, equally spaced on a logarithmic scale: 0 if nothing
  passes, 1/3 for always as fast as the reference.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

import attrs
from fib_schema import Evaluation, Performance, Problem, Severity, Trace, TraceSet, Workload
from fib_schema.display import counted, escape_line
from fib_schema.trace_facts import counting_traces

from ..flags import CPU_TIMING, is_quick
from .ratios import UNKNOWN, Outcome, Ratio, baseline_speedup_of, ratio_of, speedup_of
from .trace_fields import baseline_of, blocking_flags, latency_of, reference_timing_of, timing_of

FAST_FACTORS = (1.0,)
"""The values of p at which tables show ``fast_p``."""
FAST_GRID = tuple(round(10 ** (step / 20), 6) for step in range(-20, 41))
"""The values of p at which `fast_curve` is computed."""


@attrs.frozen(kw_only=True)
class Options:
    """Options of reports."""

    allow_flags: Collection[str] = ()
    """Flags of `fib_schema.UNRANKED_FLAGS`, or `fib_bench.flags.CPU_TIMING`, that do not prevent a ranking."""
    baseline: str | None = None
    """The solution that speedups are quoted against too; None means the one that a trace itself names."""
    baseline_author: str = "baseline"
    """The author against whose solutions authors are ranked."""
    fast_factors: Sequence[float] = FAST_FACTORS
    """The values of p at which ``fast_p`` is given."""
    note: str = ""
    """Text below the title of a page, such as where the inputs come from."""


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

    def speedup(self, trace: Trace) -> Ratio:
        """The speedup of one trace of this group over the reference, ranked or not."""
        if latency_of(trace, (*self.allow_flags, CPU_TIMING)) is None or (performance := _performance(trace)) is None:
            return UNKNOWN
        return speedup_of(performance, self._cpu_reference_bounds_ms.get(trace.workload.uuid))

    def speedups(self, solution: str) -> list[Ratio]:
        """The speedups over the reference that are known, ranked or not."""
        found = map(self.speedup, self.traces[solution].values())
        return [ratio for ratio in found if ratio.outcome is not Outcome.UNKNOWN]

    def fast_curve(self, solution: str, factors: Iterable[float] = FAST_GRID) -> list[float]:
        """``fast_p`` at each factor p; only ranked traces count, imprecise ones with the lower bound of their ratio."""
        ranked = [trace for trace in self.traces[solution].values() if latency_of(trace, self.allow_flags) is not None]
        speedups = sorted(value for trace in ranked if (value := self.speedup(trace).certain_value) is not None)
        return [(len(speedups) - bisect_right(speedups, p)) / len(self.workloads) for p in factors]

    def baseline_speedups(self, solution: str, baseline: str | None) -> dict[str, list[Ratio]]:
        """Speedups over baselines by name: from interleaved samples where the trace has them, else from two traces."""
        flags = (*self.allow_flags, CPU_TIMING)
        found: dict[str, list[Ratio]] = {}
        base = self.traces.get(baseline or "", {})
        for uuid, trace in self.traces[solution].items():
            performance = _performance(trace)
            if performance is None or latency_of(trace, flags) is None:
                continue
            interleaved, other = baseline_of(performance), base.get(uuid)
            if interleaved is not None and baseline in (None, interleaved.solution):
                found.setdefault(interleaved.solution, []).append(baseline_speedup_of(performance))
            elif baseline is not None and other is not None and latency_of(other, flags) is not None:
                other_performance = _performance(other)
                assert other_performance is not None
                ratio = ratio_of(timing_of(other_performance), timing_of(performance))
                found.setdefault(baseline, []).append(ratio)
        return found

    @cached_property
    def _cpu_reference_bounds_ms(self) -> Mapping[str, tuple[float, float]]:
        """Range of the reference's latency over all traces that were timed on the CPU, by workload.

        Other programs change CPU latencies between two evaluations of one run. A speedup counts as precise only if
        the reference took as long beside all other solutions.
        """
        found: dict[str, tuple[float, float]] = {}
        for group in self.traces.values():
            for uuid, trace in group.items():
                performance = _performance(trace)
                if performance is None or trace.evaluation is None or CPU_TIMING not in trace.evaluation.flags:
                    continue
                timing = reference_timing_of(performance)
                if timing is None or timing.bounds_ms is None or timing.is_interleaved is False:
                    continue
                low, high = timing.bounds_ms
                before = found.get(uuid, (low, high))
                found[uuid] = min(before[0], low), max(before[1], high)
        return found


def group_results(
    trace_set: TraceSet, options: Options, definitions: Collection[str] | None = None
) -> list[DeviceResults]:
    """The traces of a data set by definition and device.

    Raises:
        UnknownName: A definition is not in the set.
    """
    for name in definitions or ():
        trace_set.get_definition(name)
    found: list[DeviceResults] = []
    for definition in trace_set.traces if definitions is None else definitions:
        by_hardware: dict[str, dict[str, dict[str, Trace]]] = {}
        for trace in latest(counting_traces(trace_set, definition)):
            assert trace.evaluation is not None
            by_solution = by_hardware.setdefault(trace.evaluation.environment.hardware, {})
            by_solution.setdefault(str(trace.solution), {})[trace.workload.uuid] = trace
        found += [
            DeviceResults(definition, device, traces, options.allow_flags) for device, traces in by_hardware.items()
        ]
    return found


def latest(traces: Iterable[Trace]) -> list[Trace]:
    """The last trace of each solution on each workload and device; of quick runs only where there is no other."""
    kept: dict[tuple[str | None, str, str], Trace] = {}
    for trace in traces:
        if trace.evaluation is not None:
            key = (trace.solution, trace.workload.uuid, trace.evaluation.environment.hardware)
            if not is_quick(trace) or is_quick(kept.get(key, trace)):
                kept[key] = trace
    return list(kept.values())


def count_cpu_timed(trace_set: TraceSet, definitions: Collection[str] | None = None) -> int:
    """The number of traces that are unranked because of CPU timing only."""
    names = trace_set.traces if definitions is None else definitions
    traces = (trace for name in names for trace in latest(counting_traces(trace_set, name)))
    return sum(blocking_flags(trace.evaluation) == (CPU_TIMING,) for trace in traces if trace.evaluation)


def layout_problems(trace_set: TraceSet, definitions: Collection[str] | None = None) -> list[Problem]:
    """A warning for each definition with traces that measured another layout than that of their workload."""
    problems = []
    for name in trace_set.traces if definitions is None else definitions:
        left_out = len(trace_set.traces.get(name, [])) - len(counting_traces(trace_set, name))
        if left_out:
            message = (
                f"{counted(left_out, 'trace')} measured another layout than that of the workload, and "
                f"{'does' if left_out == 1 else 'do'} not count; 'fib-bench run --resume' measures the workload's"
            )
            problems.append(Problem(str(trace_set.root), name, message, Severity.WARNING, "other-layout"))
    return problems


def error_line(evaluation: Evaluation) -> str:
    """The line of a log with the reason of a failure, control characters escaped. It is untrusted text."""
    lines = [line.strip() for line in evaluation.log.splitlines() if line.strip()]
    if not lines:
        return ""
    is_traceback = lines[0].startswith("Traceback")
    line = _before_output(lines)[-1] if is_traceback else lines[0]
    return escape_line(line)


def failure_text(evaluation: Evaluation) -> str:
    """The status of a failed evaluation and its error line, which is marked as output of the solution.

    Readers of reports, language models among them, must not take text of a solution for text of the harness.
    """
    line = error_line(evaluation)
    return f"{evaluation.status}, untrusted output: {line}" if line else str(evaluation.status)


def _before_output(lines: list[str]) -> list[str]:
    marks = [i for i, line in enumerate(lines) if line.startswith("--- printed by")]
    return lines[: marks[0]] if marks and marks[0] else lines


def _performance(trace: Trace) -> Performance | None:
    return trace.evaluation.performance if trace.evaluation else None
