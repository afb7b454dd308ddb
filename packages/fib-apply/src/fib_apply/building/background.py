"""One daemon thread for what the calls of an engine must not wait for."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable

import attrs

from ..log import logger

_IDLE_SECONDS = 30.0
_CAPTURE_MODE_RELAXED = 2


def nothing() -> None:
    """For those who need not be told."""


def in_words(error: BaseException) -> str:
    """The first line of what an exception says, whatever that is."""
    try:
        lines = str(error).splitlines()
    except Exception:  # noqa: BLE001 - an exception of a solution; its text can fail as its import did
        lines = []
    text = f"{type(error).__name__}: {lines[0]}" if lines and lines[0] else type(error).__name__
    return text[:500]


@attrs.frozen
class _Job:
    run: Callable[[], None]
    name: str
    drop: Callable[[], object]
    device: int | None


class Background:
    """Runs jobs one after another in a thread that is there while there is something to do."""

    def __init__(self) -> None:
        self.failures = 0
        """Jobs that raised."""
        self._is_closed = False
        self.renew()

    def renew(self) -> None:
        """Begin without jobs and thread: a forked process has neither, and its locks may be held by no one."""
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._thread: threading.Thread | None = None
        self._is_running = False

    @property
    def waiting(self) -> int:
        """Jobs that are not done, the running one included."""
        return len(self._jobs) + self._is_running

    @property
    def is_this_thread(self) -> bool:
        """Whether the caller is a job."""
        return threading.current_thread() is self._thread

    def submit(self, run: Callable[[], None], name: str, drop: Callable[[], object] = nothing) -> None:
        """Have a job done.

        Args:
            run: The job; what it raises is logged and counted.
            name: What messages call it.
            drop: Called in its place if it will never be done: this is closed, or there can be no thread.
        """
        job = _Job(run, name, drop, _current_device())
        with self._changed:
            is_taken = not self._is_closed and self._has_thread()
            if is_taken:
                self._jobs.append(job)
                self._changed.notify_all()
        if not is_taken:
            drop()

    def wait(self, timeout_seconds: float) -> bool:
        """Whether everything is done, within a time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.waiting, timeout_seconds)

    def close(self) -> None:
        """Drop what waits and take nothing more; what runs is not waited for."""
        with self._changed:
            self._is_closed = True
            dropped = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for job in dropped:
            job.drop()

    def guard(self, call: Callable[[], None], name: str) -> None:
        """Call something that may fail, at the border of the thread."""
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - in a thread an interrupt or exit is just another failure
            self.failures += 1
            logger.warning("%s failed in the background: %s", name, in_words(error))

    def _has_thread(self) -> bool:
        if self._thread is not None:
            return True
        thread = threading.Thread(target=self._work, name="fib-apply", daemon=True)
        try:
            self._thread = thread
            thread.start()
        except RuntimeError as error:  # the system has no more threads, or the interpreter is ending
            self._thread = None
            logger.warning("nothing can be done in the background: %s", error)
        return self._thread is not None

    def _work(self) -> None:
        is_relaxed = False

        def do(job: _Job) -> None:
            nonlocal is_relaxed
            is_relaxed = is_relaxed or let_others_capture()
            _enter_device(job.device)
            job.run()

        while job := self._next():
            self.guard(functools.partial(do, job), job.name)
            del job  # what it refers to need not live until the next one

    def _next(self) -> _Job | None:
        """The next job; None if this thread is to end."""
        with self._changed:
            if not self.is_this_thread:  # a job has forked, and this is the copy, a process of one thread:
                os._exit(0)  # where that returns, Python 3.11 aborts
            self._is_running = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._jobs or self._is_closed, _IDLE_SECONDS)
            if not self._jobs:
                self._thread = None
                return None
            self._is_running = True
            return self._jobs.popleft()


def _is_cuda_in_use() -> bool:
    """Without importing torch, which another thread may be doing at this moment."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    is_initialized = getattr(cuda, "is_initialized", None)
    return bool(is_initialized and is_initialized())


def _current_device() -> int | None:
    """The caller's CUDA device, if it uses one: a new thread would use the first, and take memory there."""
    if not _is_cuda_in_use():
        return None
    import torch

    return torch.cuda.current_device()


def _enter_device(index: int | None) -> None:
    if index is not None:
        import torch

        torch.cuda.set_device(index)


def let_others_capture() -> bool:
    """Keep what this thread does from breaking a CUDA graph that another thread is capturing.

    By default a capture forbids *every* thread of the process to allocate device memory or load a module,
    which is what loading a solution does, and is invalidated by the attempt. A thread in relaxed mode is exempt.

    Returns:
        Whether it was done; it cannot be before CUDA is in use.
    """
    if not _is_cuda_in_use():
        return False
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        exchange = driver.cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):  # torch for other hardware, or an old driver
        return True
    return bool(exchange(ctypes.byref(ctypes.c_int(_CAPTURE_MODE_RELAXED))) == 0)
