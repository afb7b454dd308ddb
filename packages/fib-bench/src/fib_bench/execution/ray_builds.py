"""Builds on the nodes of a Ray cluster: tasks without a device, so that no device waits for a compiler.

The build cache is a folder of a node, so each node builds what its own actors will load. Where nodes
share the folder, its locks see to it that one of them compiles. What does not build is a result; only
a task that the cluster loses is repeated, and what is lost too often is left to the judge, which
builds whatever it does not find.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import attrs
from fib_schema import Definition, FibError, Solution

from ..config.model import BenchmarkConfig
from ..plan import BuildFailure, DefinitionPlan
from ..worker.caches import COMPILED
from ..worker.server_client import ForkServerClient
from .ray_cluster import RayError, Seat, TaskUnschedulableError, meaning_of, on_node, ray

_MOST_LOSSES = 3  # of one build on one node
_CORES_OF_A_BUILD = 4  # on a node with GPUs, whose other cores are for what is being timed
_POLL_SECONDS = 0.2
_START_SECONDS = 60.0  # for a task's process and what it imports
_END_SECONDS = 10.0
_Key: TypeAlias = tuple[str, str]
"""The names of a definition and of a solution."""


@attrs.frozen
class BuildTask:
    """What a build on a node is told.

    Args:
        device: The kind of device that the solution is for.
        hidden: Folders that no worker may read.
        seconds: How long a build may take.
    """

    device: str
    hidden: tuple[Path, ...]
    seconds: float

    def build(self, definition: Definition, solution: Solution) -> BuildFailure | None:
        """Compile a solution as the judge's own worker would, into the cache which that will have."""
        from ..judge.build import attempt  # imports torch, which the driver need not
        from ..judge.function_worker import FunctionWorker, solution_request

        with _server(self.device, self.hidden).spawn() as worker:
            candidate = FunctionWorker(worker, solution_request("cpu", definition, solution))
            return attempt(candidate, self.seconds, is_ahead=True)


@cache
def _server(device: str, hidden: tuple[Path, ...]) -> ForkServerClient:
    """One for all builds in a process of Ray's; it ends with that process."""
    return ForkServerClient(device, hidden)


def _build(task: BuildTask, definition: Definition, solution: Solution) -> BuildFailure | None:
    return task.build(definition, solution)


@attrs.define(eq=False)
class _Node:
    """The builds of a node."""

    id: str
    limit: int
    """How many at a time."""
    waiting: dict[_Key, tuple[Definition, Solution]] = attrs.field(factory=dict)
    running: dict[Any, tuple[_Key, Definition, Solution]] = attrs.field(factory=dict)
    """By reference to the task."""
    begun: set[_Key] = attrs.field(factory=set)
    """What its actors have been given to evaluate."""
    failures: dict[_Key, BuildFailure] = attrs.field(factory=dict)
    losses: Counter[_Key] = attrs.field(factory=Counter)

    @property
    def is_building(self) -> bool:
        """Whether something is under way, or waits that its actors have been given."""
        return bool(self.running or self.waiting.keys() & self.begun)

    def order(self, part: DefinitionPlan) -> DefinitionPlan:
        """A plan with what is known of its builds, and those last that are not done yet."""
        name = part.definition.name
        late = {*self.waiting, *(key for key, _, _ in self.running.values())}
        pending = {
            uuid: tuple(sorted(solutions, key=lambda solution: (name, solution.name) in late))
            for uuid, solutions in part.pending.items()
        }
        unbuildable = {key[1]: failure for key, failure in self.failures.items() if key[0] == name}
        return attrs.evolve(part, pending=pending, unbuildable=unbuildable)


class Builds:
    """Builds what compiled solutions need, on the nodes whose actors will run them.

    On nodes with GPUs everything is built as far ahead as processors allow. Where the processors are
    the device, nothing is built beside what is timed: what an actor is given is built before it begins.

    Args:
        seats: The devices.
        config: How to run.
        root: The data set's folder.
        baselines: The baseline of each definition that has one.
    """

    def __init__(
        self, seats: Sequence[Seat], config: BenchmarkConfig, root: Path | None, baselines: Mapping[str, Solution]
    ) -> None:
        self._is_cuda = config.device.startswith("cuda")
        self._nodes = {seat.node: _Node(seat.node, self._limit(seat.cpus)) for seat in seats}
        self._task = BuildTask(config.device, () if root is None else (root,), config.timeout_seconds)
        self._baselines = baselines
        self._not_given: Counter[_Key] = Counter()
        """How many evaluations no actor has been given yet."""
        self._change = threading.Condition()
        self._is_stopped = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _limit(self, cpus: int) -> int:
        """How many builds at a time; none where the actor has the only processor."""
        return min(cpus, max(cpus // _CORES_OF_A_BUILD, 1)) if self._is_cuda else max(cpus - 1, 0)

    def begin(self, parts: Sequence[DefinitionPlan]) -> None:
        """Have everything built that is compiled, each node beginning elsewhere."""
        builds: dict[_Key, tuple[Definition, Solution]] = {}
        for part in parts:
            for key, solution in self._compiled(part):
                builds[key] = part.definition, solution
                self._not_given[key] += 1
        for index, node in enumerate(self._nodes.values()):
            first = index * len(builds) // len(self._nodes)
            in_turn = [*builds.items()]
            node.waiting = dict(in_turn[first:] + in_turn[:first]) if node.limit else {}
        if builds and not self._is_stopped:
            self._thread.start()

    def turn_to(self, node_id: str, part: DefinitionPlan) -> DefinitionPlan | None:
        """Have a node build first what its actor turns to.

        Returns:
            The plan with what is known of its builds; None if the run was stopped meanwhile.

        Raises:
            Exception: One of ours, from a task.
        """
        node = self._nodes[node_id]
        with self._change:
            for key, _ in self._compiled(part):
                self._not_given[key] -= 1
                node.begun.add(key)
            self._change.notify_all()
            if not self._is_cuda:
                self._wait(node)
            self.check()
            return None if self._is_stopped else node.order(part)

    def check(self) -> None:
        """Raise the error of ours that has ended the builds, if there was one."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End all builds."""
        with self._change:
            self._is_stopped = True
            for node in self._nodes.values():
                self._leave(node)
            self._change.notify_all()

    def close(self) -> None:
        """End all builds, and wait until they have ended."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)

    def _compiled(self, part: DefinitionPlan) -> Iterator[tuple[_Key, Solution]]:
        """What is compiled for each workload of a plan."""
        name = part.definition.name
        beside = [self._baselines[name]] if name in self._baselines else []
        for solutions in part.pending.values():
            for solution in (*solutions, *beside):
                if solution.spec.language in COMPILED:
                    yield (name, solution.name), solution

    def _wait(self, node: _Node) -> None:
        """Wait for what a node is to build now; without a sign of life for longer than a build, it is left."""
        while node.is_building and self._error is None and not self._is_stopped:
            if not self._change.wait(self._task.seconds + _START_SECONDS):
                self._leave(node)

    def _leave(self, node: _Node) -> None:
        """Build nothing more on a node."""
        node.waiting.clear()
        for reference in node.running:
            ray.cancel(reference, force=True)

    # -- in the thread ---------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while self._submit():
                with self._change:
                    running = [reference for node in self._nodes.values() for reference in node.running]
                ended, _ = ray.wait(running, num_returns=1, timeout=_POLL_SECONDS)
                with self._change:
                    for reference in ended:
                        self._settle(reference)
        except Exception as error:  # noqa: BLE001 the border of the thread: `check` raises it
            with self._change:
                self._error = error
                self._change.notify_all()

    def _submit(self) -> bool:
        """Start what there is room for; returns whether anything runs, for which it waits unless it is stopped."""
        with self._change:
            while True:
                for node in self._nodes.values():
                    while len(node.running) < node.limit and (key := self._next(node)) is not None:
                        self._start(node, key)
                is_running = any(node.running for node in self._nodes.values())
                if is_running or self._is_stopped:
                    return is_running
                self._change.wait()

    def _next(self, node: _Node) -> _Key | None:
        """What a node's actors have been given, then what nobody has been given yet."""
        first = next((key for key in node.waiting if key in node.begun), None)
        if first is not None or not self._is_cuda:
            return first
        return next((key for key in node.waiting if self._not_given[key] > 0), None)

    def _start(self, node: _Node, key: _Key) -> None:
        definition, solution = node.waiting.pop(key)
        options = {"num_cpus": 1, "num_gpus": 0, "max_retries": 0, "scheduling_strategy": on_node(node.id)}
        reference = ray.remote(_build).options(**options).remote(self._task, definition, solution)
        node.running[reference] = key, definition, solution

    def _settle(self, reference: Any) -> None:
        """Take what became of a build; one that the cluster has lost is tried again, a few times.

        Raises:
            Exception: One of ours.
        """
        node = next(node for node in self._nodes.values() if reference in node.running)
        key, definition, solution = node.running.pop(reference)
        try:
            if (failure := ray.get(reference)) is not None:
                node.failures[key] = failure
        except RayError as error:
            meaning = meaning_of(error)
            if not isinstance(meaning, FibError | OSError):  # which say what the node lacks
                raise meaning from error
            node.losses[key] += 1
            if isinstance(error, TaskUnschedulableError):  # the node is gone
                self._leave(node)
            elif node.losses[key] < _MOST_LOSSES and not self._is_stopped:
                node.waiting = {key: (definition, solution), **node.waiting}
        self._change.notify_all()
