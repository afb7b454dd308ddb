"""Periodic thread: calls a function in an interval, and whenever it is woken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from fib_compile.forking import renew_on_fork

from ..events import OperationFailed, emit
from ..signal_errors import is_from_signal_handler


class PeriodicThread:
    """A daemon thread. A forked child has one of its own.

    Args:
        name: Of the thread.
        run: Called in the thread; what it raises is logged.
        interval_seconds: Between two calls; None calls it only when the thread is woken.
    """

    def __init__(self, name: str, run: Callable[[], object], interval_seconds: float | None) -> None:
        self._name = name
        self._run = run
        self._interval_seconds = interval_seconds
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._is_started = self._is_closed = False
        renew_on_fork(self)

    def start(self) -> None:
        """Start the thread."""
        self._is_started = True
        try:
            threading.Thread(target=self._loop, name=self._name, daemon=True).start()
        except RuntimeError as error:  # thread limit reached, or the interpreter is shutting down
            emit(OperationFailed(f"the thread {self._name} cannot be started: {error}"))

    def wake(self) -> None:
        """Call the function soon. Safe in a signal handler: `SimpleQueue.put` is reentrant."""
        self._wakeups.put(None)

    def close(self) -> None:
        """End the thread after a call that is under way, without waiting."""
        self._is_closed = True
        self.wake()

    def renew_after_fork(self) -> None:
        """Start again: the thread of the parent does not exist in the child, and its queue may be locked."""
        self._wakeups = SimpleQueue()
        if self._is_started and not self._is_closed:
            self.start()

    def _loop(self) -> None:
        while True:
            self._wait()
            if self._is_closed:
                return
            try:
                self._run()
            except Exception as error:
                if is_from_signal_handler(error):
                    raise
                emit(OperationFailed(f"{self._name} failed: {type(error).__name__}: {error}"))

    def _wait(self) -> None:
        """Wait for the interval to end or for a wake-up; later wake-ups until now count as this one."""
        try:
            self._wakeups.get(timeout=self._interval_seconds)
            while True:
                self._wakeups.get_nowait()
        except Empty:
            return
