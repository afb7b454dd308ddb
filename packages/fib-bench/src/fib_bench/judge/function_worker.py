"""A worker with what it is to build: a solution, a definition's reference or a baseline."""

from __future__ import annotations

import attrs
import msgspec
from fib_schema import Definition, EvaluationStatus, Solution, format_json

from ..transport.protocol import Build, Built
from ..transport.rpc import Rejected, ask, read
from ..worker.client import Worker, WorkerLost


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
            self.worker.post(self._ahead)
            self._is_ahead = True
        except WorkerLost:
            pass  # the build will find it gone, and say so

    def compile(self, seconds: float) -> None:
        """Have compilers run, and no code of a solution: what they make stays in its cache.

        Raises:
            Rejected: It does not compile.
            WorkerLost: It took its worker down.
        """
        ask(self.worker, self._ahead, Built, seconds)

    def build(self, seconds: float) -> None:
        """Have the function built.

        Raises:
            Rejected: It cannot be.
            WorkerLost: It took its worker down.
        """
        if self._is_ahead:
            self._is_ahead = False
            self._finish_ahead(seconds)
        self.has_setup = ask(self.worker, self.request, Built, seconds).has_setup

    def _finish_ahead(self, seconds: float) -> None:
        """Take what was begun ahead: what does not compile is not tried twice.

        Raises:
            Rejected: It does not compile.
            WorkerLost: It took its worker down.
        """
        try:
            read(self.worker.answer(seconds), self._ahead, Built)
        except Rejected as error:
            if error.status is EvaluationStatus.COMPILE_ERROR:
                raise
            # the device may have been full of another solution's memory; the build will say whether it still is

    @property
    def _ahead(self) -> Build:
        return msgspec.structs.replace(self.request, is_ahead=True)


def solution_request(device: str, definition: Definition, solution: Solution) -> Build:
    """What a solution's worker gets: of the definition all but the reference."""
    return Build(device, format_json(_without_reference(definition)), format_json(solution))


def reference_request(device: str, definition: Definition) -> Build:
    """What a reference's worker gets."""
    return Build(device, format_json(definition), None)


def _without_reference(definition: Definition) -> Definition:
    """A definition for a solution's worker: what the reference computes is for the solution to know."""
    return attrs.evolve(definition, reference="def run(*inputs):\n    raise NotImplementedError\n")
