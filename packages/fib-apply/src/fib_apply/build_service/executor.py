"""Background executor: one daemon thread for work that the calls of an engine must not wait for."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

from ..events import logger

_IDLE_SECONDS = 30.0
_LONGEST_SECONDS = 1e8  # of a wait; the platform refuses far longer ones, and infinity
_COOPERATION_SECONDS = 0.5
"""Time at exit in which a job sees that its executor is closed; then it is interrupted."""
_EXIT_SECONDS = 3.0
"""Longest wait at exit. A thread that is in C++ code when the interpreter is gone ends the process by SIGABRT."""
_CAPTURE_MODE_RELAXED = 2


def summarize_error(error: BaseException) -> str:
    """The type and the first line of an exception; never raises, though the exception's own ``__str__`` may."""
    try:
        lines = str(error).splitlines()
    except Exception:  # noqa: BLE001 - the exception class may come from a solution
        lines = []
    text = f"{type(error).__name__}: {lines[0]}" if lines and lines[0] else type(error).__name__
    return text[:500]


class InterpreterExit(BaseException):
    """Raised in the background thread when the interpreter ends."""


@attrs.frozen
class _Work:
    run: Callable[[], None]
    name: str
    on_drop: Callable[[], object]
    device: int | None


class BackgroundExecutor:
    """Runs jobs one after another in a thread that exists while there is work. A forked child needs another one."""

    def __init__(self) -> None:
        self.is_closed = self._is_running = False
        """Whether no more jobs are accepted; the running job should end soon."""
        self._changed = threading.Condition()
        self._jobs: deque[_Work] = deque()
        self._thread: threading.Thread | None = None
        self.process_id = os.getpid()
        _executors.add(self)

    @property
    def pending(self) -> int:
        """Number of unfinished jobs, the running one included."""
        return len(self._jobs) + self._is_running

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller runs in the executor's thread."""
        return threading.current_thread() is self._thread

    def submit(self, run: Callable[[], None], name: str, on_drop: Callable[[], object] = lambda: None) -> None:
        """Queue a job; `on_drop` is called if it never runs: the executor is closed, or no thread can be started."""
        job = _Work(run, name, on_drop, _current_device())
        problem = None
        with self._changed:
            is_accepted = not self.is_closed and (problem := self._start_thread()) is None
            if is_accepted:
                self._jobs.append(job)
                self._changed.notify_all()
        if problem is not None:
            logger.warning("background work is off: no thread can be started: %s", problem)
        if not is_accepted:
            on_drop()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until no job is pending; returns whether that happened in time. A job itself does not wait."""
        if threading.current_thread() is self._thread:
            return False
        with self._changed:
            return self._changed.wait_for(lambda: not self.pending, min(timeout_seconds, _LONGEST_SECONDS))

    def close(self) -> None:
        """Drop queued jobs and accept no more, without waiting for the running one."""
        with self._changed:
            self.is_closed = True
            dropped = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for job in dropped:
            job.on_drop()

    def interrupt(self, seconds: float) -> None:
        """Wait for the thread of a closed executor, raise an exception in it, and wait for the rest of the time."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(min(seconds, _COOPERATION_SECONDS))
        if thread.is_alive() and thread.ident is not None:
            raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
            raise_in(ctypes.c_ulong(thread.ident), ctypes.py_object(InterpreterExit))
            thread.join(max(0.0, seconds - _COOPERATION_SECONDS))

    def _start_thread(self) -> RuntimeError | None:
        """Start the thread unless there is one; returns why it cannot be started."""
        if self._thread is not None:
            return None
        thread = threading.Thread(target=self._work, name="fib-apply", daemon=True)
        try:
            self._thread = thread
            thread.start()
        except RuntimeError as error:  # thread limit reached, or the interpreter is shutting down
            self._thread = None
            return error
        return None

    def _work(self) -> None:
        is_relaxed = False
        _register_at_exit()
        while job := self._next():
            try:
                is_relaxed = is_relaxed or use_relaxed_capture_mode()
                if job.device is not None:
                    sys.modules["torch"].cuda.set_device(job.device)
                job.run()
            except BaseException as error:  # noqa: BLE001 - in a thread, an interrupt or exit is a failure like any other
                if not isinstance(error, InterpreterExit):
                    logger.warning("%s failed in the background: %s", job.name, summarize_error(error))
            del job  # do not keep its references alive until the next job comes

    def _next(self) -> _Work | None:
        """The next job; None when the thread is to end."""
        if os.getpid() != self.process_id:  # a job has forked, and this is the child's only thread:
            os._exit(0)  # Python 3.11 aborts where a forked thread returns
        with self._changed:
            self._is_running = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._jobs or self.is_closed, _IDLE_SECONDS)
            if not self._jobs:
                self._thread = None
                return None
            self._is_running = True
            return self._jobs.popleft()


_executors: weakref.WeakSet[BackgroundExecutor] = weakref.WeakSet()
_PYTHON_S_OWN: Any = threading


@functools.cache
def _register_at_exit() -> None:
    """Close all executors when the interpreter ends, before it waits for the threads that run compilers."""
    import concurrent.futures.thread  # noqa: F401 it registers what waits for them; the last one registered is called first

    with contextlib.suppress(RuntimeError):  # the interpreter is ending
        getattr(_PYTHON_S_OWN, "_register_atexit", atexit.register)(_close_all)


def _close_all() -> None:
    deadline = time.monotonic() + _EXIT_SECONDS
    executors = [one for one in _executors if one.process_id == os.getpid()]
    for executor in executors:
        executor.close()
    for executor in executors:
        executor.interrupt(max(0.0, deadline - time.monotonic()))


def _is_cuda_in_use() -> bool:
    """Whether CUDA is initialized; does not import torch, which another thread may be importing."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    is_initialized = getattr(cuda, "is_initialized", None)
    return bool(is_initialized and is_initialized())


def _current_device() -> int | None:
    """The caller's CUDA device, if CUDA is in use: a new thread would use device 0 and take memory there."""
    if not _is_cuda_in_use():
        return None
    import torch

    return torch.cuda.current_device()


def use_relaxed_capture_mode() -> bool:
    """Set the calling thread's stream capture mode to relaxed.

    By default a CUDA graph capture forbids *every* thread of the process to allocate device memory or load a
    module, and is invalidated by the attempt; loading a solution does both. A thread in relaxed mode is exempt.

    Returns:
        Whether the mode is set, or there is no such driver; False before CUDA is in use.
    """
    if not _is_cuda_in_use():
        return False
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        exchange = driver.cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):  # torch for other hardware, or an old driver
        return True
    return bool(exchange(ctypes.byref(ctypes.c_int(_CAPTURE_MODE_RELAXED))) == 0)
