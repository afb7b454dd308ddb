"""A worker with what it is to build: a solution, a definition's reference or a baseline."""

from __future__ import annotations

import attrs
import msgspec
from fib_schema import Definition, Solution, format_json

from .dialogue import ask
from .wire import Build, Built
from .worker.pool import Worker, WorkerLost


class FunctionWorker:
    """A worker that holds a built function.

    Args:
        worker: Freshly forked.
        request: What to build.
    """

    def __init__(self, worker: Worker, request: Build) -> None:
        self.worker = worker
        self.request = request
        self.may_capture = True
        self.has_setup = False
        self.is_profiled = False
        """Whether its kernels have been looked at, which is done on one workload."""
        self._is_ahead = False

    def begin(self) -> None:
        """Have compilers run and the device made ready, and wait for nothing: no code of a solution runs yet."""
        try:
            self.worker.post(msgspec.structs.replace(self.request, is_ahead=True))
            self._is_ahead = True
        except WorkerLost:
            pass  # the build will find it gone, and say so

    def build(self, seconds: float) -> None:
        """Have the function built.

        Raises:
            Rejected: It cannot be.
            WorkerLost: It took its worker down.
        """
        if self._is_ahead:
            self._is_ahead = False
            self.worker.answer(seconds)
        self.has_setup = ask(self.worker, self.request, Built, seconds).has_setup


def solution_request(device: str, definition: Definition, solution: Solution) -> Build:
    """What a solution's worker gets: of the definition all but the reference."""
    return Build(device, format_json(_without_reference(definition)), format_json(solution))


def reference_request(device: str, definition: Definition) -> Build:
    """What a reference's worker gets."""
    return Build(device, format_json(definition), None)


def _without_reference(definition: Definition) -> Definition:
    """A definition for a solution's worker: what the reference computes is for the solution to know."""
    return attrs.evolve(definition, reference="def run(*inputs):\n    raise NotImplementedError\n")
