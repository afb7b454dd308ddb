"""Judges of a device: one for each data set, started on first use and again after they were closed.

`Judges` runs them on this machine. `RayJudges` runs them on a node of a Ray cluster, by fib-bench's worker for one
device of a node, which hosts a `Judges` there. `interrupt` may be called from another thread, everything else from one.
All but it raise `JudgeFailed` where a judge could not be started, has died, or was interrupted.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fib_bench
from fib_bench import BenchmarkConfig, IsolationReport, JudgeProcess, probe_isolation, remove_build_cache
from fib_bench.errors import JudgeFailed
from fib_bench.events import Event
from fib_schema import Definition, Environment, Solution, Workload

from .errors import InvalidSetting

if TYPE_CHECKING:
    from fib_bench.execution.ray_scheduler import DeviceSlot, RayDeviceWorker


class Judges:
    """Judges of a device of this machine."""

    def __init__(self, device: str, configs: Mapping[Path, BenchmarkConfig]) -> None:
        self._device = device
        self._configs = configs
        self._judges: dict[Path, JudgeProcess] = {}
        self._lock = threading.Lock()
        self._is_interrupted = False

    def probe(self, private: Sequence[Path]) -> IsolationReport:
        """Report the isolation of workers, and which of these paths they could open."""
        return probe_isolation(self._device, private)

    def begin(self) -> None:
        """Begin with the next submission: forget that an earlier one was interrupted."""
        with self._lock:
            self._is_interrupted = False

    def environment(self, root: Path) -> Environment:
        """The hardware and the versions that traces state."""
        return self._judge(root).environment

    def run(
        self, root: Path, definition: Definition, solution: Solution, workloads: Sequence[Workload], cache_key: str
    ) -> Iterator[Event]:
        """Evaluate a solution on workloads of a data set, with a build cache for evaluations with this key."""
        yield from self._judge(root).run(definition, solution, workloads, cache_key)

    def forget(self, solution: Solution, cache_key: str) -> None:
        """Remove the build cache of evaluations with a key, none of which is running."""
        remove_build_cache(solution, cache_key)

    def interrupt(self) -> None:
        """End the running evaluation; the judges start again when they are needed after `begin`."""
        with self._lock:
            self._is_interrupted = True
            closing = list(self._judges.values())
            self._judges.clear()
        for judge in closing:
            judge.close()

    def _judge(self, root: Path) -> JudgeProcess:
        with self._lock:
            if self._is_interrupted:
                raise JudgeFailed("it was interrupted")
            found = self._judges.get(root)
            if found is None:
                found = self._judges[root] = JudgeProcess(self._configs[root], root)
            return found


class RayJudges(Judges):
    """Judges in an actor on a node, which has one device of the node for itself. An interrupted actor is killed."""

    def __init__(self, slot: DeviceSlot, configs: Mapping[Path, BenchmarkConfig]) -> None:
        super().__init__(next(iter(configs.values())).device, configs)
        self._slot = slot
        self._actor: RayDeviceWorker | None = None

    def probe(self, private: Sequence[Path]) -> IsolationReport:
        """Report the isolation of workers on the node."""
        report: IsolationReport = next(self._call("probe", tuple(private)))
        return report

    def environment(self, root: Path) -> Environment:
        """The hardware and the versions that traces state."""
        environment: Environment = next(self._call("environment", root))
        return environment

    def run(
        self, root: Path, definition: Definition, solution: Solution, workloads: Sequence[Workload], cache_key: str
    ) -> Iterator[Event]:
        """Evaluate a solution on workloads of a data set, with a build cache on the node."""
        yield from self._call("run", root, definition, solution, tuple(workloads), cache_key)

    def forget(self, solution: Solution, cache_key: str) -> None:
        """Remove the build cache on the node; the key of one that remains there is used by no other evaluation."""
        with suppress(JudgeFailed):  # the node or its actor has gone
            next(self._call("forget", solution, cache_key))

    def interrupt(self) -> None:
        """Kill the actor; the next one starts when it is needed after `begin`."""
        with self._lock:
            self._is_interrupted = True
            actor, self._actor = self._actor, None
        if actor is not None:
            actor.close()

    def _call(self, method: str, *arguments: Any) -> Iterator[Any]:
        """Call a method of the judges on the node; yields the events of an evaluation, or the one result."""
        yield from self._started().execute((method, arguments))  # type: ignore[arg-type]  # of `_NodeJudges`

    def _started(self) -> RayDeviceWorker:
        from fib_bench.execution.ray_scheduler import RayDeviceWorker  # imports Ray

        with self._lock:
            if self._is_interrupted:
                raise JudgeFailed("it was interrupted")
            if self._actor is None:
                host = partial(_NodeJudges, self._slot.name, fib_bench.__version__, self._device, dict(self._configs))
                is_cuda = self._device.startswith("cuda")
                self._actor = RayDeviceWorker(self._slot.node, host, is_cuda=is_cuda)  # type: ignore[arg-type]
            return self._actor


class _NodeJudges:
    """The judges of a device, in the actor on its node.

    Raises:
        InvalidSetting: The node has another version of fib-bench.
    """

    def __init__(self, name: str, version: str, device: str, configs: Mapping[Path, BenchmarkConfig]) -> None:
        if fib_bench.__version__ != version:
            problem = f"{name} has fib-bench {fib_bench.__version__}, the service has {version}; install the same"
            raise InvalidSetting("--executor", problem)
        self._folder = tempfile.TemporaryDirectory()
        os.chdir(self._folder.name)  # workers can read the current folder
        self._judges = Judges(device, configs)
        self.environment = self._judges.environment(next(iter(configs)))

    def execute(self, call: tuple[str, tuple[Any, ...]]) -> Iterator[Any]:
        """Call a method of the judges; yields the events of an evaluation, or the one result of anything else."""
        method, arguments = call
        found = getattr(self._judges, method)(*arguments)
        yield from found if isinstance(found, Iterator) else (found,)

    def close(self) -> None:
        """Terminate the judges."""
        self._judges.interrupt()
        self._folder.cleanup()
