"""Opening workers. They make their device contexts while the judge does other work on the device.

A device context takes 0.2 s, and making it disturbs timed passes. So other judges time no passes meanwhile, and this
judge waits for it before it does.
"""

from __future__ import annotations

from .burst_lock import BurstLock
from .function_worker import FunctionWorker


class OpeningWorkers:
    """The workers of one judge that make their device contexts.

    Args:
        bursts: The lock of the device; None on the CPU.
    """

    def __init__(self, bursts: BurstLock | None) -> None:
        self._bursts = bursts
        self._functions: list[FunctionWorker] = []

    def __bool__(self) -> bool:
        return bool(self._functions)

    def add(self, function: FunctionWorker) -> None:
        """Have a worker make its device context, then compile."""
        self._functions.append(function)
        self._keep_device()
        function.begin()

    def poll(self) -> None:
        """Go on with those whose device contexts are there, without waiting."""
        if self._functions:
            self._functions = [function for function in self._functions if not function.advance()]
            self._keep_device()

    def settle(self, seconds: float) -> None:
        """Wait until all device contexts are there; the build of a worker reports what failed.

        Args:
            seconds: The bound on each of them.
        """
        while self._functions:
            self._functions.pop().finish_opening(seconds)
        self._keep_device()

    def forget(self) -> None:
        """Forget all: they have been ended."""
        self._functions = []
        self._keep_device()

    def _keep_device(self) -> None:
        if self._bursts is not None:
            self._bursts.keep("opening workers", bool(self._functions))
