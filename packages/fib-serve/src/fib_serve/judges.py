"""Judges of a device: one for each data set, started on first use and again after they were closed.

`Judges` runs them on this machine. `RayJudges` runs them on a node of a Ray cluster, by fib-bench's worker for one
device of a node, which hosts a `Judges` there. `interrupt` may be called from another thread, everything else from one.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import fib_bench
from fib_bench import BenchmarkConfig, Evaluator, IsolationReport, probe_isolation, remove_build_cache
from fib_bench.errors import JudgeFailed
from fib_bench.events import Event
from fib_schema import Definition, Environment, Solution, Workload

from .errors import InvalidSetting

if TYPE_CHECKING:
    from fib_bench.execution.ray_scheduler import DeviceSlot, RayDeviceWorker


class Judges:
    """Judges of a device of this machine.

    Args:
        device: The device to run on.
        configs: The settings by the root of a data set.
    """

    def __init__(self, device: str, configs: Mapping[Path, BenchmarkConfig]) -> None:
        self._device = device
        self._configs = configs
        self._evaluators: dict[Path, Evaluator] = {}
        self._lock = threading.Lock()
        self._is_interrupted = False

    def probe(self, private: Sequence[Path]) -> IsolationReport:
        """Report the isolation of workers, and which of these paths they could open.

        Raises:
            JudgeFailed: No worker could be started.
        """
        return probe_isolation(self._device, private)

    def begin(self) -> None:
        """Begin with the next submission: forget that an earlier one was interrupted."""
        with self._lock:
            self._is_interrupted = False

    def environment(self, root: Path) -> Environment:
        """The hardware and the versions that traces state.

        Raises:
            JudgeFailed: A judge could not be started, or was interrupted.
        """
        return self._evaluator(root).environment

    def run(
        self, root: Path, definition: Definition, solution: Solution, workloads: Sequence[Workload], cache_key: str
    ) -> Iterator[Event]:
        """Evaluate a solution on workloads of a data set, with a build cache for evaluations with this key.

        Raises:
            JudgeFailed: A judge could not be started, has died, or was interrupted.
        """
        yield from self._evaluator(root).run(definition, solution, workloads, cache_key)

    def forget(self, solution: Solution, cache_key: str) -> None:
        """Remove the build cache of evaluations with a key, none of which is running."""
        remove_build_cache(solution, cache_key)

    def interrupt(self) -> None:
        """End the running evaluation; the judges start again when they are needed after `begin`."""
        with self._lock:
            self._is_interrupted = True
            closing = list(self._evaluators.values())
            self._evaluators.clear()
        for evaluator in closing:
            evaluator.close()

    close = interrupt

    def _evaluator(self, root: Path) -> Evaluator:
        with self._lock:
            if self._is_interrupted:
                raise JudgeFailed("it was interrupted")
            found = self._evaluators.get(root)
            if found is None:
                found = self._evaluators[root] = Evaluator(self._configs[root], root)
            return found


class RayJudges(Judges):
    """Judges in an actor on a node, which has one device of the node for itself. An interrupted actor is killed.

    Args:
        slot: The device of the node.
        configs: The settings by the root of a data set; their device is that of the actor, which sees no other.
    """

    def __init__(self, slot: DeviceSlot, configs: Mapping[Path, BenchmarkConfig]) -> None:
        device = next(iter(configs.values())).device
        super().__init__(device, configs)
        host = partial(_NodeJudges, slot.name, fib_bench.__version__, device, dict(configs))
        self._slot, self._host = slot, host
        self._actor: RayDeviceWorker | None = None

    def probe(self, private: Sequence[Path]) -> IsolationReport:
        """Report the isolation of workers on the node."""
        report: IsolationReport = self._ask(partial(Judges.probe, private=tuple(private)))
        return report

    def environment(self, root: Path) -> Environment:
        """The hardware and the versions that traces state."""
        environment: Environment = self._ask(partial(Judges.environment, root=root))
        return environment

    def run(
        self, root: Path, definition: Definition, solution: Solution, workloads: Sequence[Workload], cache_key: str
    ) -> Iterator[Event]:
        """Evaluate a solution on workloads of a data set, with a build cache on the node."""
        yield from self._stream(_Run(root, definition, solution, tuple(workloads), cache_key))

    def forget(self, solution: Solution, cache_key: str) -> None:
        """Remove the build cache on the node; the key of one that remains there is used by no other evaluation."""
        with suppress(JudgeFailed):  # the node or its actor has gone
            self._ask(partial(Judges.forget, solution=solution, cache_key=cache_key))

    def interrupt(self) -> None:
        """Kill the actor; the next one starts when it is needed after `begin`."""
        with self._lock:
            self._is_interrupted = True
            actor, self._actor = self._actor, None
        if actor is not None:
            actor.close()

    close = interrupt

    def _ask(self, call: Callable[[Judges], Any]) -> Any:
        return next(self._stream(call))

    def _stream(self, call: Callable[[Judges], Any]) -> Iterator[Any]:
        yield from self._started().execute(call)  # type: ignore[arg-type]  # `_NodeJudges` takes a call

    def _started(self) -> RayDeviceWorker:
        from fib_bench.execution.ray_scheduler import RayDeviceWorker  # imports Ray

        with self._lock:
            if self._is_interrupted:
                raise JudgeFailed("it was interrupted")
            if self._actor is None:
                is_cuda = self._device.startswith("cuda")
                self._actor = RayDeviceWorker(self._slot.node, self._host, is_cuda=is_cuda)  # type: ignore[arg-type]
            return self._actor


@attrs.frozen
class _Run:
    """A call of `Judges.run`, for another process."""

    root: Path
    definition: Definition
    solution: Solution
    workloads: tuple[Workload, ...]
    cache_key: str

    def __call__(self, judges: Judges) -> Iterator[Event]:
        return judges.run(self.root, self.definition, self.solution, self.workloads, self.cache_key)


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

    def execute(self, call: Callable[[Judges], Any]) -> Iterator[Any]:
        """Make a call; yields the events of an evaluation, or the one result of anything else."""
        found = call(self._judges)
        if isinstance(found, Iterator):
            yield from found
        else:
            yield found

    def close(self) -> None:
        """Terminate the judges."""
        self._judges.close()
        self._folder.cleanup()
