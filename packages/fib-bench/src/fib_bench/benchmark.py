"""Benchmark runs over a data set. Every evaluation is recorded as soon as it is made."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

import attrs
from fib_schema import Trace, TraceSet
from fib_schema.display import counted, escape_line

from .config.model import BenchmarkConfig
from .events import DeviceExcluded, Evaluated, Event, Observer, Phase, PhaseTimes, Planned, Skipped, Working
from .execution.scheduler import make_scheduler
from .plan import Plan, Skip, check_names, in_order_of, make_plan
from .report.leaderboard import format_trace

if TYPE_CHECKING:
    from .execution.scheduler import Scheduler


@attrs.frozen
class RunResult:
    """The traces of a run, and the work that it skipped."""

    traces: tuple[Trace, ...]
    """In the order of the plan, which is not the order in which evaluations end."""
    skipped: tuple[Skip, ...]
    seconds: Mapping[Phase, float] = attrs.field(factory=dict)
    """Seconds by phase, which add up to the wall time of the run on each device."""
    is_stopped: bool = False
    """Whether it was stopped before all work was done."""
    device_busy_share: float | None = None
    """The share of the wall time in which a kernel ran, as the driver samples it; None if it does not tell."""
    notes: tuple[str, ...] = ()
    """Such as that solutions for other hardware of the same architecture ran, or that a device was excluded."""

    def __repr__(self) -> str:
        """A line for each evaluation, then the skipped work."""
        return "\n".join(map(escape_line, [*map(format_trace, self.traces), *(f"skipped {s}" for s in self.skipped)]))

    @property
    def failures(self) -> tuple[Skip, ...]:
        """The work that should have run and could not."""
        return tuple(skip for skip in self.skipped if skip.is_failure)

    @property
    def is_without_results(self) -> bool:
        """Whether nothing could run, and no earlier run had done it."""
        return not self.traces and not any(skip.is_done for skip in self.skipped)


class Benchmark:
    """Benchmarks the solutions of a data set; with a root, traces are appended there as they are made."""

    def __init__(self, trace_set: TraceSet, config: BenchmarkConfig | None = None) -> None:
        self._trace_set = trace_set
        self._config = (config or BenchmarkConfig()).for_data_set(trace_set)
        self._scheduler: Scheduler | None = None
        self._is_stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_trace_set(self) -> TraceSet:
        """The data set."""
        return self._trace_set

    def close(self) -> None:
        """Do nothing: a run releases its resources itself."""

    def stop(self) -> None:
        """End the current run at once; what was evaluated is its result."""
        self._is_stopped = True
        if self._scheduler is not None:
            self._scheduler.close()

    def run_all(self, dump_traces: bool = True, resume: bool = False) -> TraceSet:
        """Run everything that the configuration selects, as `run` does, and return the data set with all its traces.

        Without `dump_traces` that is an in-memory data set with the new traces only.
        """
        result = self.run(dump_traces=dump_traces, resume=resume)
        if dump_traces:
            return self._trace_set
        names = dict.fromkeys(trace.definition for trace in result.traces)
        return TraceSet(
            definitions={name: self._trace_set.definitions[name] for name in names},
            solutions={name: self._trace_set.solutions[name] for name in names},
            traces={name: [t for t in result.traces if t.definition == name] for name in names},
        )

    def run(self, *, dump_traces: bool = True, resume: bool = False, observe: Observer = lambda _: None) -> RunResult:
        """Run, and call an observer with each event.

        With `dump_traces` each trace is added to the data set when it is made; `resume` skips pairs that have one.

        Raises:
            UnknownName: A name in the configuration matches nothing.
            UnsupportedDevice: The configuration's device cannot be measured on.
        """
        check_names(self._trace_set, self._config)
        begin, events = time.monotonic(), list[Event]()
        with self._make_scheduler() as scheduler:
            devices = scheduler.device_count
            start_seconds = (time.monotonic() - begin) * devices
            plan = make_plan(self._trace_set, self._config, scheduler.environment.hardware, resume=resume)
            observe(Planned(plan))
            self._scheduler = scheduler
            for event in () if self._is_stopped else scheduler.execute(plan.definitions):
                if isinstance(event, Evaluated) and dump_traces:
                    self._trace_set.add_traces([event.trace])
                if not isinstance(event, Working):
                    events.append(event)
                observe(event)
            self._scheduler = None
        wall_seconds = (time.monotonic() - begin) * devices
        result = _result_of(plan, events, start_seconds, wall_seconds)
        is_stopped, self._is_stopped = self._is_stopped and result.is_stopped, False
        return attrs.evolve(result, is_stopped=is_stopped)

    def _make_scheduler(self) -> Scheduler:
        name = self._config.baseline
        found = {} if name is None else self._trace_set.solutions
        baselines = {d: solution for d, solutions in found.items() for solution in solutions if solution.name == name}
        return make_scheduler(self._config, self._trace_set.root, baselines)


def _result_of(plan: Plan, events: Sequence[Event], start_seconds: float, wall_seconds: float) -> RunResult:
    traces = [event.trace for event in events if isinstance(event, Evaluated)]
    skips = [event for event in events if isinstance(event, Skipped)]
    times = [event for event in events if isinstance(event, PhaseTimes)]
    skipped = [*plan.skipped, *(event.skip for event in skips)]
    if left := plan.count - len(traces) - sum(event.count for event in skips):
        reason = f"the run was stopped before {left} of {counted(plan.count, 'evaluation')}"
        skipped.append(Skip("all definitions", None, None, reason))
    seconds = {Phase.START: start_seconds}
    for phase, taken in (item for event in times for item in event.seconds.items()):
        seconds[phase] = seconds.get(phase, 0.0) + taken
    seconds[Phase.OTHER] = 0.0  # the rest contains the time that judges count as such
    seconds[Phase.OTHER] = max(wall_seconds - sum(seconds.values()), 0.0)
    busy_seconds = [event.busy_seconds for event in times if event.busy_seconds is not None]
    return RunResult(
        traces=in_order_of(plan.definitions, traces),
        skipped=tuple(skipped),
        seconds={phase: seconds[phase] for phase in Phase if phase in seconds},
        is_stopped=left > 0,
        device_busy_share=sum(busy_seconds) / wall_seconds if busy_seconds else None,
        notes=(*plan.notes, *(str(event) for event in events if isinstance(event, DeviceExcluded))),
    )
