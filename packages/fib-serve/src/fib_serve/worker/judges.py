"""Judges of a device: one for each data set, started on first use and again after they were closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from fib_bench import BenchmarkConfig, Evaluator, IsolationReport, probe_isolation, remove_build_cache
from fib_bench.errors import JudgeFailed
from fib_bench.events import Event
from fib_schema import Definition, Environment, Solution, Workload


class DeviceJudges(Protocol):
    """Judges of a device of this machine or another one.

    `interrupt` may be called from another thread, everything else from one.
    """

    def check(self) -> None:
        """Find out whether the device is still there.

        Raises:
            DeviceLost: It is not.
        """
        ...

    def probe(self, private: Sequence[Path]) -> IsolationReport:
        """Report the isolation of workers, and which of these paths they could open.

        Raises:
            JudgeFailed: No worker could be started.
        """
        ...

    def begin(self) -> None:
        """Begin with the next submission: forget that an earlier one was interrupted.

        Raises:
            JudgeFailed: The device is lost.
        """
        ...

    def environment(self, root: Path) -> Environment:
        """The hardware and the versions that traces state.

        Raises:
            JudgeFailed: A judge could not be started, or was interrupted.
        """
        ...

    def run(
        self, root: Path, definition: Definition, solution: Solution, workloads: Sequence[Workload], cache_key: str
    ) -> Iterator[Event]:
        """Evaluate a solution on workloads of a data set, with a build cache for evaluations with this key.

        Raises:
            JudgeFailed: A judge could not be started, has died, or was interrupted.
        """
        ...

    def forget(self, solution: Solution, cache_key: str) -> None:
        """Remove the build cache of evaluations with a key, none of which is running."""
        ...

    def interrupt(self) -> None:
        """End the running evaluation; the judges start again when they are needed after `begin`."""
        ...

    def close(self) -> None:
        """Terminate the judges."""
        ...


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

    def check(self) -> None:
        """Do nothing: a device of this machine does not leave it."""

    def probe(self, private: Sequence[Path]) -> IsolationReport:
        """Report the isolation of workers, and which of these paths they could open."""
        return probe_isolation(self._device, private)

    def begin(self) -> None:
        """Begin with the next submission: forget that an earlier one was interrupted."""
        with self._lock:
            self._is_interrupted = False

    def environment(self, root: Path) -> Environment:
        """The hardware and the versions that traces state."""
        return self._evaluator(root).environment

    def run(
        self, root: Path, definition: Definition, solution: Solution, workloads: Sequence[Workload], cache_key: str
    ) -> Iterator[Event]:
        """Evaluate a solution on workloads of a data set."""
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
