"""Signal handlers that store kept calls before SIGTERM or SIGINT ends the process.

Handlers that were installed before are called afterwards; where there was none, the default action follows. A handler
that another library installs later stays in place.

A handler runs in the main thread, between any two of its instructions. If that thread is inside this package, it may
hold a lock that the storage thread needs: the signal is then sent again a moment later.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import attrs

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_RESEND_SECONDS = 0.005
MAX_DELAY_SECONDS = 10.0
"""Longest delay of a signal."""
_PACKAGE = __name__.rpartition(".")[0]

_callbacks: tuple[Callable[[], object], ...] = ()
_deferred_since: float | None = None
"""Time at which the deferred signal arrived first; None if none is deferred."""


@attrs.frozen(eq=False)
class _Handler:
    """Runs the callbacks, then the handler that it has replaced."""

    previous: Any

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _is_deferred(number, frame):
            return
        try:
            for callback in _callbacks:
                callback()
        finally:
            if callable(self.previous):
                self.previous(number, frame)
            else:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)


def register(callback: Callable[[], object]) -> None:
    """Call a function before a signal ends the process, from now on.

    Handlers are installed if this is the main thread: no other may do so.
    """
    global _callbacks  # noqa: PLW0603 signals belong to the process
    _callbacks = (*(other for other in _callbacks if other != callback), callback)
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _SIGNALS:
        previous = signal.getsignal(number)
        if previous is None or previous is signal.SIG_IGN or isinstance(previous, _Handler):
            continue  # installed by C code; ignored by the process; or ours
        signal.signal(number, _Handler(previous))


def unregister(callback: Callable[[], object]) -> None:
    """Remove a callback. After the last one, previous handlers are restored where ours are installed.

    Outside of the main thread our handlers stay installed and only call the previous ones.
    """
    global _callbacks, _deferred_since  # noqa: PLW0603 likewise
    _callbacks = tuple(other for other in _callbacks if other != callback)
    _deferred_since = None
    if _callbacks or threading.current_thread() is not threading.main_thread():
        return
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if isinstance(handler, _Handler):
            signal.signal(number, handler.previous)


def _is_deferred(number: int, frame: FrameType | None) -> bool:
    """Send a signal again later if it interrupts this package, for `MAX_DELAY_SECONDS` at most."""
    global _deferred_since  # noqa: PLW0603 likewise
    now = time.monotonic()
    since = now if _deferred_since is None else _deferred_since
    if _is_in_package(frame) and now - since < MAX_DELAY_SECONDS and _send_again(number):
        _deferred_since = since
        return True
    _deferred_since = None
    return False


def _is_in_package(frame: FrameType | None) -> bool:
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(_PACKAGE + ".") and name != __name__:  # this module calls the handlers of other libraries
            return True
        frame = frame.f_back
    return False


def _send_again(number: int) -> bool:
    def send() -> None:
        time.sleep(_RESEND_SECONDS)
        os.kill(os.getpid(), number)

    try:
        _thread.start_new_thread(send, ())  # a `threading.Thread` would take locks that the main thread may hold
    except RuntimeError:  # the interpreter is ending
        return False
    return True
