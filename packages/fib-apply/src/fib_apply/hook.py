"""Listeners of calls: one hook function that a user sets, and listeners that other packages add.

A listener is asked once for each function and returns a callback for the arguments of its calls, or None. Without
listeners, calls cost nothing more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

ApplyHook: TypeAlias = Callable[[str, Mapping[str, Any]], None]
"""Called with a definition's name and the call's arguments by name, before the call is routed."""
Callback: TypeAlias = Callable[..., object]
"""Called with the arguments of one call, in the order of the names that it was made for."""


class Listener(Protocol):
    """Is notified of calls, whether a runtime is active or not."""

    def bind(self, definition: str, names: tuple[str, ...]) -> Callback | None:
        """Return what to call before each call of a function; None to ignore its calls.

        Args:
            definition: The name of the calls' definition.
            names: The names of the function's parameters, in order.
        """
        ...


_lock = threading.RLock()  # reentrant: a signal handler may change listeners during a change
_hook: ApplyHook | None = None
_listeners: tuple[Listener, ...] = ()
_observers: list[Callable[[], None]] = []


def set_apply_hook(function: ApplyHook | None) -> None:
    """Set the function that is called before each call that may be routed; None removes it.

    The caller sees what it raises.
    """
    global _hook  # noqa: PLW0603 one hook per process
    with _lock:
        _hook = function
    _notify_observers()


def get_apply_hook() -> ApplyHook:
    """The hook function; one that does nothing if none is set."""
    return (lambda *_: None) if _hook is None else _hook


def add_listener(listener: Listener) -> None:
    """Add a listener; it is asked about each function from now on."""
    global _listeners  # noqa: PLW0603 one tuple per process
    with _lock:
        _listeners = (*_listeners, listener)
    _notify_observers()


def remove_listener(listener: Listener) -> None:
    """Remove a listener; does nothing if it was not added."""
    global _listeners  # noqa: PLW0603 one tuple per process
    with _lock:
        _listeners = tuple(other for other in _listeners if other is not listener)
    _notify_observers()


def callbacks_for(definition: str, names: tuple[str, ...]) -> tuple[Callback, ...]:
    """The callbacks of all listeners for the calls of a function."""
    found = [callback for listener in _listeners if (callback := listener.bind(definition, names)) is not None]
    if (hook := _hook) is not None:
        found.append(lambda *values: hook(definition, dict(zip(names, values, strict=False))))
    return tuple(found)


def has_listeners() -> bool:
    """Whether there is a hook or a listener."""
    return _hook is not None or bool(_listeners)


def on_change(observer: Callable[[], None]) -> None:
    """Call a function whenever the hook or the listeners change."""
    _observers.append(observer)


def _notify_observers() -> None:
    for observer in _observers:
        observer()


def renew_lock() -> None:
    """Make a free lock in a forked child: a thread of the parent may have held it."""
    global _lock  # noqa: PLW0603 one lock per process
    _lock = threading.RLock()
