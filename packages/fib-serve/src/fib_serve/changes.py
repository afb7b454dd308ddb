"""Changes of submissions: wakes device threads and requests that wait for one."""

from __future__ import annotations

import asyncio
import contextlib
import threading

_POLL_SECONDS = 1.0


class Changes:
    """Announces changes to all threads of the service and to the event loop of its requests."""

    def __init__(self) -> None:
        self.is_closed = False
        """Whether no request waits any more."""
        self._condition = threading.Condition()
        self._count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()

    def start(self) -> None:
        """Wake requests of the running event loop from now on."""
        self._loop = asyncio.get_running_loop()

    def announce(self) -> None:
        """Wake all that wait; may be called from any thread."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake_requests)

    def end_waiting(self) -> None:
        """Wake all for the last time."""
        self.is_closed = True
        self.announce()

    def count(self) -> int:
        """The number of changes so far; take it before you read the state that may change."""
        return self._count

    def wait_in_thread(self, count: int, seconds: float) -> None:
        """Wait at most so long for a change after `count`."""
        with self._condition:
            self._condition.wait_for(lambda: self._count != count, seconds)

    def current(self) -> asyncio.Event:
        """The event that the next change sets; take it before you read the state that may change."""
        return self._event

    async def wait(self, change: asyncio.Event, seconds: float) -> None:
        """Wait for a change, at most so long and at most until commands of other processes may have made one."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(change.wait(), max(min(seconds, _POLL_SECONDS), 0.0))

    def _wake_requests(self) -> None:
        self._event.set()
        self._event = asyncio.Event()
