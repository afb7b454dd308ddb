"""Judges on a node of a Ray cluster, hosted by an actor that has one device of the node for itself.

The actor sends events; the worker on the machine of the service records them. A lost actor is not restarted.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import fib_bench
from fib_bench import BenchmarkConfig, IsolationReport
from fib_bench.errors import JudgeFailed
from fib_bench.events import Event
from fib_bench.execution.ray_scheduler import (
    DeviceSlot,
    GetTimeoutError,
    RayError,
    actor_options,
    ray,
    to_local_error,
)
from fib_schema import Definition, Environment, FibError, Solution, Workload

from ..errors import DeviceLost, InvalidSetting
from .judges import Judges

_START_SECONDS = 120.0  # another user of the cluster may have the device
_ANSWER_SECONDS = 30.0
_CONTROL = "control"  # the concurrency group of calls that must not wait for an evaluation
_LOG = logging.getLogger(__name__)


class RayJudges:
    """Judges in an actor on a node.

    Args:
        slot: The device of the node.
        configs: The settings by the root of a data set; their device is that of the actor, which sees no other.

    Raises:
        DeviceLost: The actor does not start.
        InvalidSetting: The node has another version of fib-bench.
    """

    def __init__(self, slot: DeviceSlot, configs: Mapping[Path, BenchmarkConfig]) -> None:
        self._name = slot.name
        device = next(iter(configs.values())).device
        options = actor_options(slot.node, is_cuda=device.startswith("cuda"))
        remote = ray.remote(concurrency_groups={_CONTROL: 1})(_JudgesActor)
        self._actor: Any = remote.options(**options).remote(device, dict(configs))
        try:
            self._answer(self._control("check"), _START_SECONDS)
            self._check_version()
        except FibError:
            ray.kill(self._actor)
            raise

    def check(self) -> None:
        """Find out whether the device is still there.

        Raises:
            DeviceLost: It is not.
        """
        self._answer(self._control("check"), _ANSWER_SECONDS)

    def probe(self, private: Sequence[Path]) -> IsolationReport:
        """Report the isolation of workers on the node, and which of these paths they could open there."""
        report: IsolationReport = self._call("probe", tuple(private))
        return report

    def begin(self) -> None:
        """Begin with the next submission: forget that an earlier one was interrupted."""
        self._call("begin")

    def environment(self, root: Path) -> Environment:
        """The hardware and the versions that traces state."""
        environment: Environment = self._call("environment", root)
        return environment

    def run(
        self, root: Path, definition: Definition, solution: Solution, workloads: Sequence[Workload], cache_key: str
    ) -> Iterator[Event]:
        """Evaluate a solution on workloads of a data set, with a build cache on the node."""
        method = self._actor.run.options(num_returns="streaming")
        try:
            for reference in method.remote(root, definition, solution, tuple(workloads), cache_key):
                yield ray.get(reference)
        except RayError as error:
            raise to_local_error(error) from error

    def forget(self, solution: Solution, cache_key: str) -> None:
        """Remove the build cache on the node; the key of one that remains there is used by no other evaluation."""
        try:
            self._call("forget", solution, cache_key)
        except JudgeFailed as error:
            _LOG.warning("%s: the build cache of solution %s remains: %s", self._name, solution.name, error)

    def interrupt(self) -> None:
        """End the running evaluation; an actor that does not answer is killed."""
        try:
            self._answer(self._control("interrupt"), _ANSWER_SECONDS)
        except DeviceLost as error:
            _LOG.warning("%s", error)
            ray.kill(self._actor)

    def close(self) -> None:
        """Terminate the judges and the actor."""
        with suppress(DeviceLost):
            self._answer(self._control("close"), _ANSWER_SECONDS)
        ray.kill(self._actor)

    def _check_version(self) -> None:
        theirs = self._call("version")
        if theirs != fib_bench.__version__:
            problem = f"{self._name} has fib-bench {theirs}, the service has {fib_bench.__version__}; install the same"
            raise InvalidSetting("--executor", problem)

    def _control(self, method: str) -> Any:
        return getattr(self._actor, method).options(concurrency_group=_CONTROL).remote()

    def _answer(self, reference: Any, seconds: float) -> None:
        try:
            ray.get(reference, timeout=seconds)
        except GetTimeoutError as error:
            raise DeviceLost(self._name, f"it does not answer for {seconds:g} s") from error
        except RayError as error:
            raise DeviceLost(self._name, str(to_local_error(error))) from error

    def _call(self, method: str, *arguments: object) -> Any:
        try:
            return ray.get(getattr(self._actor, method).remote(*arguments))
        except RayError as error:
            raise to_local_error(error) from error


class _JudgesActor:
    """The actor class. All but the control methods run in one thread, with which the judges would end."""

    def __init__(self, device: str, configs: Mapping[Path, BenchmarkConfig]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        os.chdir(self._folder.name)  # Python makes the current folder readable to workers
        self._judges = Judges(device, configs)

    def check(self) -> None:
        pass

    def version(self) -> str:
        return fib_bench.__version__

    def probe(self, private: Sequence[Path]) -> IsolationReport:
        return self._judges.probe(private)

    def begin(self) -> None:
        self._judges.begin()

    def environment(self, root: Path) -> Environment:
        return self._judges.environment(root)

    def run(
        self, root: Path, definition: Definition, solution: Solution, workloads: Sequence[Workload], cache_key: str
    ) -> Iterator[Event]:
        yield from self._judges.run(root, definition, solution, workloads, cache_key)

    def forget(self, solution: Solution, cache_key: str) -> None:
        self._judges.forget(solution, cache_key)

    def interrupt(self) -> None:
        self._judges.interrupt()

    def close(self) -> None:
        self._judges.close()
        self._folder.cleanup()
