"""Scheduler on a Ray cluster, with an actor as device worker for each device.

The driver distributes work, receives events and records them; an actor runs the same judge process as a local
run. Work is repeated only if the cluster loses it. The data set must have the same path on every node that reads
blobs from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from fib_schema import Environment, Solution

from ..config.benchmark import BenchmarkConfig
from ..errors import JudgeFailed, UnsupportedDevice
from ..events import Event
from ..plan import DefinitionPlan
from .judge_process import JudgeProcess
from .ray_builds import Builds
from .ray_cluster import GetTimeoutError, RayError, actor_options, connect, device_slots, ray, to_local_error
from .scheduler import DeviceWorker, Scheduler

_OPEN_TIMEOUT_SECONDS = 120.0
_CLOSE_TIMEOUT_SECONDS = 10.0


def ray_scheduler(config: BenchmarkConfig, root: Path | None, baselines: Mapping[str, Solution]) -> RayScheduler:
    """Make the scheduler for all devices of a cluster of the kind that the configuration names.

    Raises:
        UnsupportedDevice: The cluster has no such device.
        JudgeFailed: A judge did not start.
    """
    connect(config.address)
    is_cuda = config.device.startswith("cuda")
    device = "cuda:0" if is_cuda else config.device  # an actor sees its own device only
    settings = attrs.evolve(config, device=device, devices=None)
    root = None if root is None else root.absolute()
    slots = device_slots(ray.nodes(), "GPU" if is_cuda else "CPU")
    if not slots:
        raise UnsupportedDevice(config.device, "no node of the Ray cluster has one")
    factory = partial(JudgeProcess, settings, root, baselines)
    builds = Builds(slots, settings, root, baselines)
    start = partial(RayDeviceWorker, factory=factory, is_cuda=is_cuda)
    workers = [
        (slot.name, partial(start, slot.node, prioritize=partial(builds.prioritize, slot.node))) for slot in slots
    ]
    return RayScheduler(workers, builds)


class RayScheduler(Scheduler):
    """Scheduler of actors, for which tasks without a device build solutions.

    Args:
        factories: Names of the workers, and functions that start them.
        builds: Builds the solutions of all plans before the workers run them.

    Raises:
        FibError: The first worker cannot be started.
    """

    def __init__(self, factories: Iterable[tuple[str, Callable[[], DeviceWorker]]], builds: Builds) -> None:
        self._builds = builds
        super().__init__(factories)

    def execute(self, parts: Sequence[DefinitionPlan]) -> Iterator[Event]:
        """Run plans, and build their solutions ahead."""
        self._builds.begin(parts)
        yield from super().execute(parts)
        self._builds.check()

    def stop(self) -> None:
        """Finish the running evaluations, start no others, and cancel all builds."""
        self._builds.stop()
        super().stop()

    def close(self) -> None:
        """Terminate all workers and builds."""
        super().close()
        self._builds.close()


class RayDeviceWorker:
    """A device worker in an actor on a given node.

    Args:
        node: The node's id.
        factory: Starts the device worker on that node.
        is_cuda: Whether it needs a GPU.
        prioritize: Called with each plan before it runs; returns the plan with its failed builds, or None to stop.

    Raises:
        JudgeFailed: The actor does not start.
        FibError: The device worker does not start.
    """

    def __init__(
        self,
        node: str,
        factory: Callable[[], DeviceWorker],
        *,
        is_cuda: bool,
        prioritize: Callable[[DefinitionPlan], DefinitionPlan | None] = lambda part: part,
    ) -> None:
        self._turn_to = prioritize
        options = actor_options(node, is_cuda=is_cuda)
        self._actor: Any = ray.remote(_DeviceActor).options(**options).remote(factory)
        try:
            self._environment: Environment = ray.get(self._actor.open.remote(), timeout=_OPEN_TIMEOUT_SECONDS)
        except GetTimeoutError as error:
            self.close()
            raise JudgeFailed(f"node {node[:8]} had no room for an actor for {_OPEN_TIMEOUT_SECONDS:g} s") from error
        except RayError as error:
            self.close()
            raise to_local_error(error) from error

    @property
    def environment(self) -> Environment:
        """The hardware and the versions that traces state."""
        return self._environment

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        """Run the plan for one definition.

        Raises:
            JudgeFailed: The node, the actor or its judge has died.
            Exception: fib-bench raised it on the node.
        """
        if (part_now := self._turn_to(part)) is None:
            return
        try:
            for reference in self._actor.execute.options(num_returns="streaming").remote(part_now):
                yield ray.get(reference)
        except RayError as error:
            raise to_local_error(error) from error

    def close(self) -> None:
        """Terminate the actor and its judge."""
        with suppress(RayError):
            ray.get(self._actor.close.remote(), timeout=_CLOSE_TIMEOUT_SECONDS)
        ray.kill(self._actor)


class _DeviceActor:
    """The actor class of a device worker."""

    def __init__(self, factory: Callable[[], DeviceWorker]) -> None:
        self._factory = factory
        self._worker: DeviceWorker | None = None

    def open(self) -> Environment:
        """Start the worker; not in the constructor, because Ray hides exceptions of an actor's constructor."""
        self._worker = self._factory()
        return self._worker.environment

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        assert self._worker is not None
        yield from self._worker.execute(part)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
