"""What happens when a signal ends the process: everything that was kept is stored first, within a time.

Handlers of signals that others have installed are called afterwards, and the default action follows
where there was none; a handler that is not ours any more is left alone.

A handler runs in the main thread, in the midst of whatever that was doing. If it was in this package, it may hold a
lock that the thread which stores will want: the signal is then put off until the main thread is somewhere else.
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
_AGAIN_SECONDS = 0.005
LONGEST_SECONDS = 10.0
"""How long a signal may be put off."""
_PACKAGE = __name__.rpartition(".")[0]

Before = Callable[[], None]
_befores: tuple[Before, ...] = ()
_put_off_since: float | None = None


@attrs.frozen(eq=False)
class _Handler:
    """Stands before a handler; each knows the one that it has replaced, so that no two call each other in turns."""

    former: Any

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _is_put_off(number, frame):
            return
        try:
            for before in _befores:
                before()
        finally:
            self._go_on(number, frame)

    def _go_on(self, number: int, frame: FrameType | None) -> None:
        if callable(self.former):
            self.former(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def watch(before: Before) -> None:
    """Have a function called before a signal ends the process, from now on.

    Handlers are installed if this is the main thread: no other may do so.
    """
    global _befores  # noqa: PLW0603 signals belong to the process
    _befores = (*(other for other in _befores if other != before), before)
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _SIGNALS:
        former = signal.getsignal(number)
        if former is None or former is signal.SIG_IGN or isinstance(former, _Handler):
            continue  # not Python's; or the process does not end of it; or ours
        signal.signal(number, _Handler(former))


def forget(before: Before) -> None:
    """Call it no more; behind the last one the handlers go, unless somebody has put others in their place.

    Where this is not the main thread, they stay and call those that were there before.
    """
    global _befores, _put_off_since  # noqa: PLW0603 likewise
    _befores = tuple(other for other in _befores if other != before)
    _put_off_since = None
    if _befores or threading.current_thread() is not threading.main_thread():
        return
    for number in _SIGNALS:
        ours = signal.getsignal(number)
        if isinstance(ours, _Handler):
            signal.signal(number, ours.former)


def _is_put_off(number: int, frame: FrameType | None) -> bool:
    """Send a signal again a moment later if it has come in the midst of this package, unless that takes too long."""
    global _put_off_since  # noqa: PLW0603 likewise
    now = time.monotonic()
    since = now if _put_off_since is None else _put_off_since
    if _is_in_package(frame) and now - since < LONGEST_SECONDS and _send_again(number):
        _put_off_since = since
        return True
    _put_off_since = None
    return False


def _is_in_package(frame: FrameType | None) -> bool:
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(_PACKAGE + ".") and name != __name__:  # from here, others' handlers are called
            return True
        frame = frame.f_back
    return False


def _send_again(number: int) -> bool:
    def send() -> None:
        time.sleep(_AGAIN_SECONDS)
        os.kill(os.getpid(), number)

    try:
        _thread.start_new_thread(send, ())  # a `threading.Thread` would take locks that may be held just now
    except RuntimeError:  # the interpreter is ending
        return False
    return True
