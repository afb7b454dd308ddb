"""Function worker. A worker with its build request: a solution, a definition's reference or a baseline."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

import attrs
import msgspec
from fib_schema import Definition, EvaluationStatus, Solution, format_json

from ..transport.messages import Build, Built, DeviceOpened, OpenDevice, Seal, Sealed
from ..worker.client import Worker, WorkerLost
from .integrity import filter_counts, is_filtered, table_digest
from .rpc import Rejected, ask, check_reply

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
        self._is_ahead = False

    def begin(self, seconds: float, device_work: DeviceWork = nullcontext) -> None:
        """Create the device context, then start compilers without waiting; no code of the solution runs yet.

        Args:
            seconds: The bound on the creation of the context.
            device_work: As for `build`.
        """
        try:
            with device_work():
                self._open_device(seconds)
            self.worker.post(self._ahead)
            self._is_ahead = True
        except (WorkerLost, Rejected):
            pass  # the build reports it

    def build(self, seconds: float, device_work: DeviceWork = nullcontext) -> None:
        """Build and load the function.

        Args:
            seconds: The bound on each request.
            device_work: Entered while the worker makes its device context, which disturbs passes of other workers.

        Raises:
            Rejected: It does not build.
            WorkerLost: The worker ended.
        """
        if self._is_ahead:
            self._is_ahead = False
            self._finish_ahead(seconds)
        with device_work():
            self._open_device(seconds)
        self.has_setup = ask(self.worker, self.request, Built, seconds).has_setup

    def _open_device(self, seconds: float) -> None:
        """Record digests of the native module of a CUDA worker before a solution is loaded."""
        if self.request.device != "cpu":
            self.table = ask(self.worker, OpenDevice(self.request.device, self.request), DeviceOpened, seconds).table
            self.table_digest = table_digest(self.worker, self.table)

    def use(self, worker: Worker) -> None:
        """Take a fresh worker in place of this one, which is ended; nothing is built."""
        self.worker.close()
        self.worker = worker
        self.is_sealed = self._is_ahead = False

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
            check_reply(self.worker.answer(seconds), self._ahead, Built)
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
