"""Function worker. A worker with its build request: a solution, a definition's reference or a baseline."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TypeAlias

import attrs
import msgspec
from fib_schema import Definition, EvaluationStatus, Solution, format_json

from ..transport.messages import Build, Built, DeviceOpened, OpenDevice, Seal, Sealed
from ..worker.client import Worker, WorkerLost
from .integrity import filter_counts, is_filtered, table_digest
from .rpc import Rejected, ask, read

DeviceWork: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Gives a block in which other judges of the device time no passes."""


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
        self.not_captured = ""
        """Reason that its calls cannot be captured; empty if they can."""
        self.padding_problem = ""
        """Reason that it is not right with padded indices; empty unless a check has failed."""
        self.has_setup = False
        self.is_profiled = False
        """Whether its kernels have been profiled, which is done on one workload."""
        self.may_seal = True
        """Whether it is sealed before timing; not after a sealed worker failed where another one did not."""
        self.is_sealed = False
        self.table, self.table_digest = 0, ""
        """Address of the native module's table, and its digest before a solution was loaded."""
        self._is_opening = self._is_open = self._is_ahead = False

    def begin(self) -> None:
        """Ask for the device context without waiting; `advance` goes on when it is there."""
        if not self._has_device_context:
            self._post_ahead()
            return
        with suppress(WorkerLost):  # the build reports it
            self.worker.post(self._opening)
            self._is_opening = True

    def advance(self) -> bool:
        """Start compilers if the device context is there; no code of the solution runs yet.

        Returns:
            Whether nothing is to be waited for: the device context is there, or cannot be made.
        """
        if self._is_opening and self.worker.has_replied():
            self.finish_opening(0.0)
        return not self._is_opening

    def finish_opening(self, seconds: float) -> None:
        """Wait for the device context, then start compilers without waiting for them.

        Args:
            seconds: How long to wait.
        """
        if not self._is_opening:
            return
        self._is_opening = False
        with suppress(WorkerLost, Rejected):  # the build reports it
            self._note_table(read(self.worker.answer(seconds), self._opening, DeviceOpened))
            self._post_ahead()

    def _post_ahead(self) -> None:
        with suppress(WorkerLost):  # the build reports it
            self.worker.post(self._ahead)
            self._is_ahead = True

    def compile(self, seconds: float) -> None:
        """Run compilers, but no code of the solution: the result stays in its cache.

        Raises:
            Rejected: It does not compile.
            WorkerLost: The worker ended.
        """
        ask(self.worker, self._ahead, Built, seconds)

    def build(self, seconds: float, device_work: DeviceWork = nullcontext) -> None:
        """Build and load the function.

        Args:
            seconds: The bound on each request.
            device_work: Entered while the worker makes its device context, which disturbs passes of other workers.

        Raises:
            Rejected: It does not build.
            WorkerLost: The worker ended.
        """
        self.finish_opening(seconds)
        if self._is_ahead:
            self._is_ahead = False
            self._finish_ahead(seconds)
        if self._has_device_context and not self._is_open:
            with device_work():
                self._note_table(ask(self.worker, self._opening, DeviceOpened, seconds))
        self.has_setup = ask(self.worker, self.request, Built, seconds).has_setup

    @property
    def _has_device_context(self) -> bool:
        return self.request.device != "cpu"

    @property
    def _opening(self) -> OpenDevice:
        return OpenDevice(self.request.device, self.request)

    def _note_table(self, opened: DeviceOpened) -> None:
        """Record the digest of the native module's table before a solution is loaded."""
        self._is_open = True
        self.table, self.table_digest = opened.table, table_digest(self.worker, opened.table)

    def use(self, worker: Worker) -> None:
        """Take a fresh worker in place of this one, which is ended; nothing is built."""
        self.worker.close()
        self.worker = worker
        self.is_sealed = self._is_opening = self._is_open = self._is_ahead = False

    def seal(self, seconds: float) -> None:
        """Seal the worker of a CUDA device.

        On the CPU honest functions start threads when they are called, and latencies are not ranked.

        Raises:
            Rejected: It reports that the solution tampered with it.
            WorkerLost: The worker ended.
        """
        if self.request.device != "cpu":
            before = filter_counts(self.worker)
            reply = ask(self.worker, Seal(), Sealed, seconds)
            self.is_sealed = bool(reply.held) and is_filtered(self.worker, before)

    def _finish_ahead(self, seconds: float) -> None:
        """Wait for the compilation that was started ahead: a compile error is not tried twice.

        Raises:
            Rejected: It does not compile.
            WorkerLost: The worker ended.
        """
        try:
            read(self.worker.answer(seconds), self._ahead, Built)
        except Rejected as error:
            if error.status is EvaluationStatus.COMPILE_ERROR:
                raise
            # the device may have been full of another solution's memory: the build decides

    @property
    def _ahead(self) -> Build:
        return msgspec.structs.replace(self.request, is_ahead=True)


def solution_request(device: str, definition: Definition, solution: Solution, cache_key: str = "") -> Build:
    """The build request of a solution: the definition without its reference."""
    return Build(device, format_json(_without_reference(definition)), format_json(solution), cache_key=cache_key)


def reference_request(device: str, definition: Definition) -> Build:
    """The build request of a reference."""
    return Build(device, format_json(definition), None)


def _without_reference(definition: Definition) -> Definition:
    """The definition as the worker of a solution gets it."""
    return attrs.evolve(definition, reference="def run(*inputs):\n    raise NotImplementedError\n")
