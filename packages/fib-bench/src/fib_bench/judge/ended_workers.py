"""Ended workers. They are killed at once, and the judge waits for their end when it needs the device undisturbed.

The end of a worker takes 0.3 s on a CUDA device. Meanwhile the result is on its way, and the next worker starts.
"""

from __future__ import annotations

from collections import deque
from multiprocessing.connection import Connection

from ..worker.client import Worker, end_all
from .burst_lock import BurstLock


class EndedWorkers:
    """The killed workers of one judge. Other judges of the device time no passes while there are any.

    Args:
        bursts: The lock of the device; None on the CPU.
    """

    def __init__(self, bursts: BurstLock | None) -> None:
        self._bursts = bursts
        self._workers: deque[Worker] = deque()

    def __bool__(self) -> bool:
        return bool(self._workers)

    def add(self, worker: Worker) -> None:
        """Kill a worker without waiting for its end."""
        self._keep_device(True)  # the end of its device context disturbs passes
        worker.kill()
        self._workers.append(worker)

    def settle(self) -> None:
        """Wait until all have ended, with everything that they started."""
        if self._workers:
            end_all(self._workers)
            self._workers.clear()
            self._keep_device(False)

    def settle_before(self, request: Connection) -> None:
        """Wait until all have ended, or until a request arrives."""
        while self._workers and self._workers[0].close(unless=request):
            self._workers.popleft()
        if not self._workers:
            self._keep_device(False)

    def _keep_device(self, is_kept: bool) -> None:
        if self._bursts is not None:
            self._bursts.keep(is_kept)
