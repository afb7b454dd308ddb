"""Storage thread: passes queued entries to the `EntryStore`, and saves the counts of calls.

Entries arrive through a queue that any thread and any signal handler may fill. Everything that was queued before a
flush is on the disk when the flush returns, or is counted as waiting, and so are the counts of calls. The end of the
process saves the counts first and waits for entries as long as some are stored.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias

import attrs
import safetensors.torch  # noqa: F401 imported now: a fork during a later import would leave half a module
from fib_apply.build_service.executor import use_relaxed_capture_mode
from fib_schema import WorkloadLog

from ..capture.copies import ByteBudget
from ..capture.recorder import PendingEntry, Recorder
from ..stats import ErrorLog
from .entries import MAX_BATCH, EntryStore

_GATHER_SECONDS = 0.02
_COUNTS_SECONDS = 60.0
"""Counts that a killed process loses at most. Saving 65,536 sizes takes 0.7 s of the storage thread."""
_ABANDON_SECONDS = 1.0
"""Wait at the end of the process for a thread that has stored nothing for a long time."""


@attrs.frozen(eq=False)
class _Flush:
    """A request to store everything that was queued before it."""

    recorders: tuple[Recorder, ...]
    done: threading.Event = attrs.field(factory=threading.Event)


Job: TypeAlias = Callable[[], None]
_Item: TypeAlias = "PendingEntry | _Flush | Job"


def _END() -> None:  # noqa: N802 a job that does nothing and marks the end
    """The last job of a thread."""


class Writer:
    """Stores entries in a daemon thread, which starts with the first counted call or item.

    Args:
        log: Appends to the data set.
        budget: Where the bytes of entries are released.
        errors: Where errors are reported.
        save_counts: Saves the counts of calls; called by each flush, and every `_COUNTS_SECONDS` while the thread runs.
    """

    def __init__(self, log: WorkloadLog, budget: ByteBudget, errors: ErrorLog, save_counts: Job) -> None:
        self._save_counts = save_counts
        self._errors = errors
        self._store = EntryStore(log, budget, errors)
        self.renew_after_fork()

    def renew_after_fork(self) -> None:
        """Start without items, and without the thread, which only the parent process has."""
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._lock = threading.RLock()  # a signal handler may run in between, in the same thread
        self._thread: threading.Thread | None = None
        self._markers = 0
        """Flushes and jobs in the queue."""
        self._in_hand = 0
        """Entries that the thread has taken from the queue and not stored yet."""
        self._counts_at = time.monotonic() + _COUNTS_SECONDS
        self._store.renew_after_fork()

    def enqueue(self, entry: PendingEntry) -> None:
        """Store an entry."""
        self._queue.put(entry)
        self.start()

    def run(self, job: Job) -> None:
        """Run a job in the thread."""
        self._mark(job)
        self.start()

    def request_flush(self) -> None:
        """Process queued items now, without waiting for more."""
        self._wake.set()

    def flush(self, recorders: Iterable[Recorder], timeout_seconds: float | None) -> bool:
        """Wait until everything that was queued, and what policies hold, is stored or waits for a retry.

        Args:
            recorders: Whose policies are drained.
            timeout_seconds: How long to wait; None for as long as it takes.

        Returns:
            Whether it was done in time.
        """
        flush = _Flush(tuple(recorders))
        return self._request(flush) and flush.done.wait(_bounded(timeout_seconds))

    def flush_at_exit(self, recorders: Iterable[Recorder], idle_seconds: float) -> bool:
        """Save the counts, then flush as long as the thread makes progress.

        Args:
            recorders: Whose policies are drained.
            idle_seconds: How long to wait without progress.

        Returns:
            Whether it was done.
        """
        flush = _Flush(tuple(recorders))
        self._counts_at = 0.0
        return self._request(flush) and self._wait_for(flush.done.wait, idle_seconds)

    def waiting(self) -> int:
        """The number of entries that are not stored, without those that policies hold."""
        return max(self._queue.qsize() - self._markers, 0) + self._in_hand + self._store.waiting()

    def close(self, idle_seconds: float | None) -> None:
        """End the thread after everything that was queued; a later item starts another one.

        A thread that still runs torch code when the interpreter is finalized would crash the process.

        Args:
            idle_seconds: How long to wait without progress; None for as long as it takes.
        """
        thread = self._thread
        if thread is None:
            return
        self._mark(_END)
        self._wake.set()
        if idle_seconds is None:
            thread.join()
        else:
            self._wait_for(lambda seconds: _joined(thread, seconds), idle_seconds)

    def abandon(self) -> None:
        """Drop everything that is queued and end the thread after the entries that it has taken."""
        thread = self._thread
        while not self._queue.empty():
            try:
                self._queue.get_nowait()
            except queue.Empty:
                break
        self._mark(_END)
        self._wake.set()
        if thread is not None:
            thread.join(_ABANDON_SECONDS)

    def start(self) -> bool:
        """Start the thread if there is none; False if the system refuses, which is reported."""
        if self._thread is not None:
            return True
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fib-tracer", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:  # the system has no more threads, or the interpreter is ending
                    self._thread = None
                    self._errors.report("storage thread cannot start", error)
                    return False
        return True

    def _request(self, flush: _Flush) -> bool:
        self._mark(flush)
        self._wake.set()
        return self.start()

    def _mark(self, item: _Flush | Job) -> None:
        with self._lock:
            self._markers += 1
        self._queue.put(item)

    def _wait_for(self, wait: Callable[[float], bool], idle_seconds: float) -> bool:
        """Wait as long as entries are finished or stored.

        Args:
            wait: Waits for a number of seconds at most; returns whether what it waits for has happened.
            idle_seconds: The wait ends when this time has passed without progress.
        """
        seconds = min(idle_seconds, threading.TIMEOUT_MAX)
        while True:
            progress = self._store.progress
            if wait(seconds):
                return True
            if self._store.progress == progress:
                return False

    # -- in the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        is_relaxed = False
        is_ending = False
        while not is_ending:
            items = self._next_items()
            is_relaxed = is_relaxed or use_relaxed_capture_mode()
            is_ending = bool(items) and items[-1] is _END
            if is_ending or time.monotonic() >= self._counts_at:
                self._save()
            self._process(items)
            if is_ending:
                self._guarded(self._store.give_up)
            elif (due := self._store.retry_at) is not None and time.monotonic() >= due:
                self._guarded(self._store.retry)
        self._thread = None
        if not self._queue.empty():  # queued before `_thread` was reset
            self.start()

    def _next_items(self) -> list[_Item]:
        """The queued items up to one flush or job, which comes last; none when counts or a retry are due.

        It waits a little for more, so that a calling thread need not share the interpreter with this one for each item.
        """
        retry_at = self._store.retry_at
        due = self._counts_at if retry_at is None else min(retry_at, self._counts_at)
        try:
            items = [self._queue.get(timeout=max(due - time.monotonic(), 0.0))]
        except queue.Empty:
            return []
        if isinstance(items[0], PendingEntry):
            self._wake.wait(_GATHER_SECONDS)
        self._wake.clear()
        while isinstance(items[-1], PendingEntry) and len(items) < MAX_BATCH:
            try:
                items.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return items

    def _process(self, items: list[_Item]) -> None:
        entries = [item for item in items if isinstance(item, PendingEntry)]
        others = [item for item in items if not isinstance(item, PendingEntry)]
        self._in_hand = len(entries)
        if others:
            with self._lock:
                self._markers -= len(others)
        items[:] = others  # entries that policies dropped must be freed before a flush ends
        self._guarded(functools.partial(self._store.finish, entries))
        entries.clear()
        self._in_hand = 0
        for item in others:
            if isinstance(item, _Flush):
                self._flush(item)
            else:
                self._guarded(item)

    def _flush(self, flush: _Flush) -> None:
        for recorder in flush.recorders:
            self._guarded(functools.partial(self._store.drain, recorder))
        self._guarded(self._store.retry_now)
        self._save()
        flush.done.set()

    def _save(self) -> None:
        self._guarded(self._save_counts)
        self._counts_at = time.monotonic() + _COUNTS_SECONDS

    def _guarded(self, job: Job) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 the thread must survive whatever a custom policy raises
            self._errors.report(f"storage: {type(error).__name__}", error)


def _bounded(seconds: float | None) -> float | None:
    """A timeout that `threading` accepts."""
    return None if seconds is None else min(seconds, threading.TIMEOUT_MAX)


def _joined(thread: threading.Thread, seconds: float) -> bool:
    thread.join(seconds)
    return not thread.is_alive()
