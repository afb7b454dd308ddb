"""Judges of a device: one for each data set, started on first use and again after they were closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from fib_bench import Evaluator
from fib_bench.errors import JudgeFailed
from fib_bench.events import Event
from fib_schema import Definition, Environment, Solution, Workload

from ..settings import Settings


class Judges:
    """Evaluators by data set. `interrupt` may be called from another thread, everything else from one.

    Args:
        settings: Of the service.
        device: The device to run on.
    """

    def __init__(self, settings: Settings, device: str) -> None:
        self._settings = settings
        self._device = device
        self._evaluators: dict[Path, Evaluator] = {}
        self._lock = threading.Lock()
        self._is_interrupted = False

    def begin(self) -> None:
        """Begin with the next submission: forget that an earlier one was interrupted."""
        with self._lock:
            self._is_interrupted = False

    def environment(self, root: Path) -> Environment:
        """The hardware and the versions that traces state."""
        return self._evaluator(root).environment

    def run(
        self, root: Path, definition: Definition, solution: Solution, workloads: Sequence[Workload]
    ) -> Iterator[Event]:
        """Evaluate a solution on workloads of a data set.

        Raises:
            JudgeFailed: A judge could not be started, has died, or was interrupted.
        """
        yield from self._evaluator(root).run(definition, solution, workloads)

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
                config = self._settings.benchmark_config(self._device, str(root))
                found = self._evaluators[root] = Evaluator(config, root)
            return found
