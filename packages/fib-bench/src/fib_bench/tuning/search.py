"""Measurement of configurations, and the choice for each key.

All configurations are evaluated on all workloads as solutions of a data set of their own, first quickly; those that may
still be the fastest on a key, by their intervals, in full. So checks, isolation, devices, progress and resuming are
those of every run. A *key* is the sizes of a workload. Configurations on a key whose intervals overlap, or are apart
by at most 0.5 % or 0.1 us, are equal. Among equals, those that are equal on most keys are chosen, then by their names,
which end in a hash: so each search that finds the same equals makes the same table.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from fib_schema import Definition, Environment, Trace, TraceSet, Workload
from fib_schema.trace_facts import CPU_TIMING, QUICK, disqualifying_flags, latest, timing_of
from fib_schema.traffic import load_traffic

from ..config.model import BenchmarkConfig
from ..events import Evaluated, Observer, Planned, Skipped
from ..execution.scheduler import make_scheduler
from ..plan import DefinitionPlan, Plan, Skip
from .space import Scalar, Space

if TYPE_CHECKING:
    from ..execution.scheduler import Scheduler

_TIE_SHARE, _TIE_MS = 0.005, 1e-4
_ALLOWED = (CPU_TIMING, QUICK)
Key = tuple[tuple[str, int], ...]
"""The sizes of the variable axes, by name."""


@attrs.frozen
class Cost:
    """The time of one call of each workload of a key, in milliseconds."""

    low_ms: float
    ms: float
    high_ms: float
    kind: str
    """``device`` or ``call``; costs of two kinds are not compared."""
    is_quick: bool

    @property
    def margin_ms(self) -> float:
        """Another configuration that is slower by no more than this is equal."""
        return max(self.ms * _TIE_SHARE, _TIE_MS)


@attrs.frozen
class Choice:
    """The chosen configuration of a key."""

    key: Key
    calls: float
    """Recorded calls with these sizes; 0 if traffic is not known."""
    chosen: str
    cost: Cost
    equals: tuple[str, ...]
    runner_up: str | None
    runner_up_cost: Cost | None

    @property
    def gain(self) -> tuple[float, float] | None:
        """The interval of the runner-up's time, divided by that of the choice."""
        other = self.runner_up_cost
        return None if other is None else (other.low_ms / self.cost.high_ms, other.high_ms / self.cost.low_ms)


class Search:
    """The evaluation of the configurations of a space, recorded in a data set of its own.

    Workloads and tensors are those of `source`; traces that the folder `root` has are not made again.
    """

    def __init__(self, source: TraceSet, space: Space, root: Path, config: BenchmarkConfig) -> None:
        self._source, self._space = source, space
        self._config = config.for_data_set(source)
        self._scheduler: Scheduler | None = None
        self.is_stopped = False
        self.environment = Environment("")
        """The device of the last run; nothing is known of others."""
        self.skipped: list[Skip] = []
        self.definition = source.get_definition(space.solution.definition)
        workloads = source.workloads.get(self.definition.name, [])[: config.max_workloads]
        self.workloads = tuple(trace.workload for trace in workloads)
        self.parameters: dict[str, Mapping[str, Scalar]] = {}
        """The configuration of each solution, by its name."""
        self.verified: dict[Key, str] = {}
        """Solutions that are evaluated in full whatever the quick evaluation says."""
        self.results = _data_set(root, self.definition, workloads)
        for parameters in space.configurations:
            self._add(parameters)

    def _add(self, parameters: Mapping[str, Scalar]) -> str:
        solution = self._space.solution_of(parameters)
        self.parameters[solution.name] = parameters
        if self.results.get_solution(solution.name) is None:
            self.results.add_solutions([solution])
        return solution.name

    def verify(self, stated: Mapping[Key, Mapping[str, Scalar]]) -> None:
        """Measure the configuration that a file states for each key, whether or not the space has it."""
        self.verified = {key: self._add(parameters) for key, parameters in stated.items()}

    @property
    def calls(self) -> dict[Key, float]:
        """Recorded calls by key; 0 where traffic is not known."""
        traffic = {} if self._source.root is None else load_traffic(self._source.root).definitions
        known = traffic.get(self.definition.name)
        by_uuid = {} if known is None else known.calls_by_workload(self.workloads)
        found: dict[Key, float] = {}
        for workload in self.workloads:
            found[key_of(workload)] = found.get(key_of(workload), 0.0) + by_uuid.get(workload.uuid, 0.0)
        return found

    def stop(self, *, at_once: bool = False) -> None:
        """Let the running evaluations finish, or end them at once, and start no others."""
        self.is_stopped = True
        if self._scheduler is not None:
            (self._scheduler.close if at_once else self._scheduler.stop)()

    def run(self, seconds: float | None, observe: Observer) -> None:
        """Evaluate all configurations quickly, and those that may be the fastest of a key in full."""
        timer = threading.Timer(threading.TIMEOUT_MAX if seconds is None else seconds, self.stop)
        timer.daemon = True
        timer.start()
        try:
            self._evaluate({workload.uuid: frozenset(self.parameters) for workload in self.workloads}, True, observe)
            costs, kept = self.costs(), frozenset(self.verified.values())
            promising = {workload.uuid: kept | _equals(costs[key_of(workload)]) for workload in self.workloads}
            self._evaluate(promising, False, observe)
        finally:
            timer.cancel()

    def _evaluate(self, names: Mapping[str, frozenset[str]], is_quick: bool, observe: Observer) -> None:
        solutions = self.results.solutions.get(self.definition.name, [])
        pending = {uuid: tuple(each for each in solutions if each.name in some) for uuid, some in names.items()}
        plan = DefinitionPlan(self.definition, self.workloads, pending)
        with make_scheduler(self._config.with_fields(quick=is_quick), self._source.root, {}) as scheduler:
            self._scheduler, self.environment = scheduler, scheduler.environment
            plan = plan.without(self._done(is_quick))
            observe(Planned(Plan((plan,), ())))
            for event in () if self.is_stopped or not plan.count else scheduler.execute((plan,)):
                if isinstance(event, Evaluated):
                    self.results.add_traces([event.trace])
                elif isinstance(event, Skipped):
                    self.skipped.append(event.skip)
                observe(event)
        self._scheduler = None

    def _latest(self) -> Mapping[str, Mapping[str, Trace]]:
        found = latest(self.results.traces.get(self.definition.name, []))
        return found.get(self.environment.hardware, {})

    def _done(self, is_quick: bool) -> frozenset[tuple[str, str | None]]:
        pairs = ((uuid, name, trace) for uuid, by_name in self._latest().items() for name, trace in by_name.items())
        return frozenset(
            (uuid, name)
            for uuid, name, trace in pairs
            if trace.evaluation and (is_quick or QUICK not in trace.evaluation.flags)
        )

    def choices(self) -> list[Choice]:
        """The configuration of each key for which one passed."""
        return choose(self.costs(), self.calls)

    def costs(self) -> dict[Key, dict[str, Cost]]:
        """The cost of each configuration that is right on all workloads of a key."""
        traces, keys = self._latest(), dict[Key, list[str]]()
        for workload in self.workloads:
            keys.setdefault(key_of(workload), []).append(workload.uuid)
        found: dict[Key, dict[str, Cost]] = {}
        for key, uuids in keys.items():
            names = set.intersection(*(set(traces.get(uuid, {})) for uuid in uuids))
            costs = {name: _cost([traces[uuid][name] for uuid in uuids]) for name in sorted(names)}
            found[key] = {name: cost for name, cost in costs.items() if cost is not None}
        return found


def key_of(workload: Workload) -> Key:
    """The sizes of a workload."""
    return tuple(sorted(workload.axes.items()))


def _cost(traces: Iterable[Trace]) -> Cost | None:
    """The sum over workloads; None if one of them did not pass, or has a flag that keeps it from being ranked."""
    low = middle = high = 0.0
    kinds, is_quick = set[str](), False
    for trace in traces:
        evaluation = trace.evaluation
        if evaluation is None or evaluation.performance is None or disqualifying_flags(evaluation, _ALLOWED):
            return None
        if (timing := timing_of(evaluation.performance)) is None:
            return None
        below, above = timing.bounds_ms or (timing.latency_ms, timing.latency_ms)
        low, middle, high = low + below, middle + timing.latency_ms, high + above
        kinds.add(timing.kind or "device")
        is_quick |= QUICK in evaluation.flags
    return Cost(low, middle, high, max(kinds), is_quick) if len(kinds) == 1 else None


def _equals(costs: Mapping[str, Cost]) -> frozenset[str]:
    """The configurations of the best kind that may be the fastest of a key."""
    best_kind = max((cost.kind for cost in costs.values()), default="")
    of_kind = {name: cost for name, cost in costs.items() if cost.kind == best_kind}
    if not of_kind:
        return frozenset()
    best = min(of_kind.values(), key=lambda cost: cost.ms)
    return frozenset(name for name, cost in of_kind.items() if cost.low_ms <= best.high_ms + best.margin_ms)


def choose(costs: Mapping[Key, Mapping[str, Cost]], calls: Mapping[Key, float]) -> list[Choice]:
    """The configuration of each key for which one passed; keys are in the order of their sizes."""
    full = {key: {n: cost for n, cost in by_name.items() if not cost.is_quick} for key, by_name in costs.items()}
    ties = {key: _equals(by_name) for key, by_name in full.items() if by_name}
    chosen, left = dict[Key, str](), dict(ties)
    while left:
        names = {name for equals in left.values() for name in equals}
        best = min(names, key=lambda name: (-sum(name in equals for equals in left.values()), name))
        chosen |= {key: best for key, equals in left.items() if best in equals}
        left = {key: equals for key, equals in left.items() if best not in equals}
    return [_choice(key, chosen[key], ties[key], full[key], calls.get(key, 0.0)) for key in sorted(ties)]


def _choice(key: Key, name: str, equals: frozenset[str], costs: Mapping[str, Cost], calls: float) -> Choice:
    cost = costs[name]
    others = {other: each for other, each in costs.items() if other != name and each.kind == cost.kind}
    runner_up = min(others, key=lambda other: (others[other].ms, other), default=None)
    runner_up_cost = None if runner_up is None else others[runner_up]
    return Choice(key, calls, name, cost, tuple(sorted(equals)), runner_up, runner_up_cost)


def loss_of(costs: Mapping[str, Cost], name: str) -> tuple[float, float, float] | None:
    """The time of a configuration, between its bounds, divided by the shortest of a key; None if it failed."""
    full = {other: cost for other, cost in costs.items() if not cost.is_quick}
    if name not in full:
        return None
    cost, best = full[name], min(full.values(), key=lambda each: each.ms)
    return cost.low_ms / best.high_ms, cost.ms / best.ms, cost.high_ms / best.low_ms


def _data_set(root: Path, definition: Definition, workloads: Iterable[Trace]) -> TraceSet:
    root.mkdir(parents=True, exist_ok=True)
    found = TraceSet.from_path(root)
    if definition.name not in found.definitions:
        found.add_definitions([definition])
        found.add_traces(workloads)
    return found
