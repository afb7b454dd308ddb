"""Builds on the nodes of a Ray cluster, as tasks without a device, so that no device waits for a compiler.

The build cache is local to a node, so each node builds the solutions that its own actors load. Where nodes share
the folder, its locks let one of them compile. A failed build is a result; a task that the cluster loses is
repeated, and after too many losses the judge builds the solution itself.
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

from ..config.benchmark import BenchmarkConfig
from ..plan import BuildFailure, DefinitionPlan
from ..worker.server_client import ForkServerClient
from .ray_cluster import DeviceSlot, RayError, TaskUnschedulableError, on_node, ray, to_local_error

_MAX_LOSSES = 3  # of one build on one node
_CORES_OF_A_BUILD = 4  # on a node with GPUs, whose other cores serve running measurements
_POLL_SECONDS = 0.2
_START_SECONDS = 60.0  # for a task's process and its imports
_END_SECONDS = 10.0
_Key: TypeAlias = tuple[str, str]
"""The names of a definition and of a solution."""


@attrs.frozen
class BuildTask:
    """The settings of builds on a node.

    Args:
        device: The kind of device that the solution is for.
        hidden: Folders that workers must not read.
        seconds: The bound on one build.
    """

    device: str
    hidden: tuple[Path, ...]
    seconds: float

    def build(self, definition: Definition, solution: Solution) -> BuildFailure | None:
        """Compile a solution into the cache that the judge's worker uses."""
        from ..judge.build import attempt  # imports torch, which the driver does not need
        from ..judge.function_worker import FunctionWorker, solution_request

        with _server(self.device, self.hidden).spawn() as worker:
            candidate = FunctionWorker(worker, solution_request("cpu", definition, solution))
            return attempt(candidate, self.seconds, is_ahead=True)


@cache
def _server(device: str, hidden: tuple[Path, ...]) -> ForkServerClient:
    """The fork server of all builds in this Ray process; it ends with the process."""
    return ForkServerClient(device, hidden)


def _build(task: BuildTask, definition: Definition, solution: Solution) -> BuildFailure | None:
    return task.build(definition, solution)


@attrs.define(eq=False)
class _Node:
    """The builds of a node."""

    id: str
    limit: int
    """The number of concurrent builds."""
    waiting: dict[_Key, tuple[Definition, Solution]] = attrs.field(factory=dict)
    running: dict[Any, tuple[_Key, Definition, Solution]] = attrs.field(factory=dict)
    """Running builds by Ray's reference to the task."""
    begun: set[_Key] = attrs.field(factory=set)
    """The solutions that its actors have started to evaluate."""
    failures: dict[_Key, BuildFailure] = attrs.field(factory=dict)
    losses: Counter[_Key] = attrs.field(factory=Counter)

    @property
    def is_building(self) -> bool:
        """Whether a build runs, or one waits that an actor needs now."""
        return bool(self.running or self.waiting.keys() & self.begun)

    def order(self, part: DefinitionPlan) -> DefinitionPlan:
        """The plan with its failed builds; solutions whose builds are not finished come last."""
        name = part.definition.name
        late = {*self.waiting, *(key for key, _, _ in self.running.values())}
        pending = {
            uuid: tuple(sorted(solutions, key=lambda solution: (name, solution.name) in late))
            for uuid, solutions in part.pending.items()
        }
        unbuildable = {key[1]: failure for key, failure in self.failures.items() if key[0] == name}
        return attrs.evolve(part, pending=pending, unbuildable=unbuildable)


class Builds:
    """Builds compiled solutions on the nodes whose actors run them.

    On nodes with GPUs builds run ahead as far as CPU cores allow. If the CPU is the device, no build runs beside
    a timed solution: the solutions of a plan are built before its actor starts.

    Args:
        slots: The devices.
        config: Settings of the run.
        root: The data set's folder.
        baselines: The baseline of each definition that has one.
    """

    def __init__(
        self, slots: Sequence[DeviceSlot], config: BenchmarkConfig, root: Path | None, baselines: Mapping[str, Solution]
    ) -> None:
        self._is_cuda = config.device.startswith("cuda")
        self._nodes = {slot.node: _Node(slot.node, self._limit(slot.cpus)) for slot in slots}
        self._task = BuildTask(config.device, () if root is None else (root,), config.timeout_seconds)
        self._baselines = baselines
        self._not_given: Counter[_Key] = Counter()
        """The number of evaluations that no actor has started."""
        self._change = threading.Condition()
        self._is_stopped = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _limit(self, cpus: int) -> int:
        """The number of concurrent builds; 0 if the actor has the only CPU core."""
        return min(cpus, max(cpus // _CORES_OF_A_BUILD, 1)) if self._is_cuda else max(cpus - 1, 0)

    def begin(self, parts: Sequence[DefinitionPlan]) -> None:
        """Start to build all compiled solutions; each node starts at another one."""
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

    def prioritize(self, node_id: str, part: DefinitionPlan) -> DefinitionPlan | None:
        """Build the solutions of a plan first, because an actor of the node starts it now.

        Returns:
            The plan with its failed builds; None if the run was stopped.

        Raises:
            Exception: A task of fib-bench raised it.
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
        """Raise the error that ended the builds, if there was one."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Cancel all builds."""
        with self._change:
            self._is_stopped = True
            for node in self._nodes.values():
                self._cancel(node)
            self._change.notify_all()

    def close(self) -> None:
        """Cancel all builds, and wait until they have ended."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)

    def _compiled(self, part: DefinitionPlan) -> Iterator[tuple[_Key, Solution]]:
        """The compiled solutions of each workload of a plan."""
        name = part.definition.name
        beside = [self._baselines[name]] if name in self._baselines else []
        for solutions in part.pending.values():
            for solution in (*solutions, *beside):
                if solution.spec.language.is_compiled:
                    yield (name, solution.name), solution

    def _wait(self, node: _Node) -> None:
        """Wait for the builds that a node needs now; cancel them after the timeout of a build without progress."""
        while node.is_building and self._error is None and not self._is_stopped:
            if not self._change.wait(self._task.seconds + _START_SECONDS):
                self._cancel(node)

    def _cancel(self, node: _Node) -> None:
        """Cancel all builds of a node."""
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
                        self._collect(reference)
        except Exception as error:  # noqa: BLE001 the boundary of the thread: `check` raises it
            with self._change:
                self._error = error
                self._change.notify_all()

    def _submit(self) -> bool:
        """Start builds up to the limits; wait until one runs or the builds are stopped, and return whether one runs."""
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
        """The next build: first one that an actor needs now, then one that no actor has started."""
        first = next((key for key in node.waiting if key in node.begun), None)
        if first is not None or not self._is_cuda:
            return first
        return next((key for key in node.waiting if self._not_given[key] > 0), None)

    def _start(self, node: _Node, key: _Key) -> None:
        definition, solution = node.waiting.pop(key)
        options = {"num_cpus": 1, "num_gpus": 0, "max_retries": 0, "scheduling_strategy": on_node(node.id)}
        reference = ray.remote(_build).options(**options).remote(self._task, definition, solution)
        node.running[reference] = key, definition, solution

    def _collect(self, reference: Any) -> None:
        """Store the result of a build; repeat one that the cluster lost, a few times.

        Raises:
            Exception: fib-bench raised it.
        """
        node = next(node for node in self._nodes.values() if reference in node.running)
        key, definition, solution = node.running.pop(reference)
        try:
            if (failure := ray.get(reference)) is not None:
                node.failures[key] = failure
        except RayError as error:
            local_error = to_local_error(error)
            if not isinstance(local_error, FibError | OSError):  # a FibError or OSError states the problem of the node
                raise local_error from error
            node.losses[key] += 1
            if isinstance(error, TaskUnschedulableError):  # the node has left the cluster
                self._cancel(node)
            elif node.losses[key] < _MAX_LOSSES and not self._is_stopped:
                node.waiting = {key: (definition, solution), **node.waiting}
        self._change.notify_all()
