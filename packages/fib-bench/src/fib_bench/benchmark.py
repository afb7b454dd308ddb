"""Runs a plan: prepares workloads, has the judge evaluate solutions, records every evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import attrs
from fib_schema import Definition, Solution, Trace, TraceSet, Workload

from .config import BenchmarkConfig
from .errors import InputError, ReferenceFailed
from .events import Evaluated, Event, Observer, Planned, Skipped, Working
from .judge import Judge
from .plan import DefinitionPlan, Plan, Skip, make_plan
from .prepared import PreparedWorkload

_MAX_SETS = 64
"""Input sets prepared at a time: each holds 6 descriptors, and 1024 are a usual limit."""


@attrs.frozen
class RunResult:
    """What a run made, and what it left out."""

    traces: tuple[Trace, ...]
    skipped: tuple[Skip, ...]

    @property
    def failures(self) -> tuple[Skip, ...]:
        """What should have run and could not."""
        return tuple(skip for skip in self.skipped if skip.is_failure)


class Benchmark:
    """Benchmarks the solutions of a data set.

    Args:
        trace_set: The data set; with a root, traces are appended there as they are made.
        config: What to run and how.
    """

    def __init__(self, trace_set: TraceSet, config: BenchmarkConfig | None = None) -> None:
        self._trace_set = trace_set
        self._config = config or BenchmarkConfig()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def get_trace_set(self) -> TraceSet:
        """The data set."""
        return self._trace_set

    def close(self) -> None:
        """Nothing outlives a run, so there is nothing left to release."""

    def run_all(self, dump_traces: bool = True, resume: bool = False) -> TraceSet:
        """Run everything that the configuration chooses.

        Args:
            dump_traces: Add each trace to the data set when it is made.
            resume: Leave out pairs that the data set has a trace of.

        Returns:
            The data set with all its traces; without `dump_traces`, one in memory that has the
            new traces only.

        Raises:
            UnknownName: A name in the configuration matches nothing.
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
        """Run, and report what happens to an observer.

        Args:
            dump_traces: Add each trace to the data set when it is made.
            resume: Leave out pairs that the data set has a trace of.
            observe: Called with each event.

        Raises:
            UnknownName: A name in the configuration matches nothing.
            UnsupportedDevice: The configuration's device cannot be measured on.
        """
        traces: list[Trace] = []
        with Judge(self._trace_set, self._config) as judge:
            plan = make_plan(self._trace_set, self._config, judge.environment.hardware, resume=resume)
            skipped = list(plan.skipped)
            observe(Planned(plan))
            for event in _execute(judge, plan, self._config.memory_bytes):
                if isinstance(event, Evaluated):
                    traces.append(event.trace)
                    if dump_traces:
                        self._trace_set.add_traces([event.trace])
                elif isinstance(event, Skipped):
                    skipped.append(event.skip)
                observe(event)
        return RunResult(tuple(traces), tuple(skipped))


def _execute(judge: Judge, plan: Plan, memory_bytes: int) -> Iterator[Event]:
    for part in plan.definitions:
        for block in _blocks(judge, part, memory_bytes):
            yield from _run_block(judge, part, block)


def _run_block(judge: Judge, part: DefinitionPlan, block: Sequence[Workload]) -> Iterator[Event]:
    """Run one block; nothing that it holds in memory outlives this call."""
    with ExitStack() as stack:
        prepared: list[PreparedWorkload] = []
        yield from _prepare(judge, part, block, prepared, stack)
        for solution in _solutions_of(part, block):
            todo = [p for p in prepared if solution in part.pending[p.workload.uuid]]
            yield from _evaluate(judge, part.definition, solution, todo)


def _prepare(
    judge: Judge,
    part: DefinitionPlan,
    block: Sequence[Workload],
    prepared: list[PreparedWorkload],
    stack: ExitStack,
) -> Iterator[Event]:
    """Prepare the workloads of a block; those that cannot be are reported and left out."""
    for workload in block:
        yield Working(f"{part.definition.name}: reference on {_short(workload)}")
        try:
            item = judge.prepare(part.definition, workload)
        except (InputError, ReferenceFailed) as error:
            skip = Skip(part.definition.name, None, workload.uuid, error.reason, is_failure=True)
            yield Skipped(skip, len(part.pending[workload.uuid]))
            continue
        stack.callback(item.close)
        prepared.append(item)


def _evaluate(
    judge: Judge, definition: Definition, solution: Solution, todo: Sequence[PreparedWorkload]
) -> Iterator[Event]:
    if todo:
        yield Working(f"{definition.name}: {solution.name}")
    for workload, evaluation in judge.evaluate(definition, solution, todo):
        yield Evaluated(Trace(definition.name, workload, solution.name, evaluation))


def _blocks(judge: Judge, part: DefinitionPlan, memory_bytes: int) -> Iterator[list[Workload]]:
    """Split the workloads so that what is prepared at a time fits into memory and needs few descriptors."""
    block: list[Workload] = []
    used = 0
    most = max(1, _MAX_SETS // judge.trials_of(part.definition))
    for workload in part.workloads:
        size = judge.workload_bytes(part.definition, workload)
        if block and (used + size > memory_bytes or len(block) == most):
            yield block
            block, used = [], 0
        block.append(workload)
        used += size
    if block:
        yield block


def _solutions_of(part: DefinitionPlan, block: Sequence[Workload]) -> list[Solution]:
    names = {s.name: s for workload in block for s in part.pending[workload.uuid]}
    return list(names.values())


def _short(workload: Workload) -> str:
    sizes = ", ".join(f"{axis}={size}" for axis, size in workload.axes.items())
    return f"{workload.uuid[:8]} ({sizes})" if sizes else workload.uuid[:8]
