"""Reload signal: a handler that requests reloads, and then calls the handler that it has replaced.

A handler is installed in the main thread only, because Python allows no other to do so. It sets flags and wakes
threads; the reload itself happens elsewhere. It replaces the default action of the signal, which ends the process.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeAlias

import attrs

from ..events import OperationFailed, emit

Request: TypeAlias = Callable[[], object]
"""Requests a reload; must be safe in a signal handler."""

_requests: dict[int, tuple[Request, ...]] = {}


@attrs.frozen(eq=False)
class _Handler:
    """Requests reloads, then calls the replaced handler."""

    previous: Any

    def __call__(self, number: int, frame: FrameType | None) -> None:
        for request in _requests.get(number, ()):
            request()
        if callable(self.previous):
            self.previous(number, frame)


def install(name: str) -> None:
    """Install the handler of a signal, unless it is installed; reports why it cannot be.

    Args:
        name: Such as ``SIGHUP``.
    """
    number = signal.Signals[name]
    previous = signal.getsignal(number)
    if isinstance(previous, _Handler):
        return
    if previous is None:
        problem = "a handler of another language is installed, which Python cannot call"
    elif threading.current_thread() is not threading.main_thread():
        problem = "routing was started in another thread than the main one; start it there, or use `watch_seconds`"
    else:
        signal.signal(number, _Handler(previous))
        return
    emit(OperationFailed(f"{name} requests no reloads: {problem}"))


def add_request(name: str, request: Request) -> None:
    """Call a function at each signal from now on, and install the handler."""
    number = signal.Signals[name]
    _requests[number] = (*_requests.get(number, ()), request)
    install(name)


def remove_request(name: str, request: Request) -> None:
    """Remove a function. After the last one, the replaced handler is restored where ours is installed."""
    number = signal.Signals[name]
    _requests[number] = tuple(other for other in _requests.get(number, ()) if other != request)
    if _requests[number] or threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(number)
    if isinstance(handler, _Handler):
        signal.signal(number, handler.previous)
