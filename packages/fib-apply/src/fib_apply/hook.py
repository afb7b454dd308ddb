"""Who listens to calls: one function that a user sets, and listeners that other packages add.

A listener is asked once for each function whose calls are routed, and gives what is to be called
with the arguments of each call, or nothing. While nobody listens, calls cost nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from fib_compile.forking import ForkSafeLock

ApplyHook: TypeAlias = Callable[[str, Mapping[str, Any]], None]
"""Called with a definition's name and the call's arguments by name, before the call is routed."""
Note: TypeAlias = Callable[..., object]
"""Called with the arguments of one call, in the order of the names that it was made for."""


class Listener(Protocol):
    """Wants to know of calls, whether a runtime is enabled or not."""

    def bind(self, definition: str, names: tuple[str, ...]) -> Note | None:
        """What is to be called before each call of a function; None if its calls do not matter.

        Args:
            definition: The name of the definition that the calls are of.
            names: Of the function's parameters, in order.
        """
        ...


class _Hook:
    """A user's function as a listener."""

    def __init__(self, function: ApplyHook) -> None:
        self.function = function

    def bind(self, definition: str, names: tuple[str, ...]) -> Note:
        function = self.function

        def note(*values: Any) -> None:
            function(definition, dict(zip(names, values, strict=False)))

        return note


_lock = ForkSafeLock()  # re-entrant: a signal's handler may change listeners while this thread does
_hook: _Hook | None = None
_listeners: tuple[Listener, ...] = ()
_on_change: list[Callable[[], None]] = []


def set_apply_hook(function: ApplyHook | None) -> None:
    """Have a function called before each call that may be routed; None takes it away.

    What it raises, the caller sees.
    """
    global _hook  # noqa: PLW0603 there is one hook in a process
    with _lock:
        _hook = None if function is None else _Hook(function)
    _changed()


def get_apply_hook() -> ApplyHook:
    """The function that is called before each call; one that does nothing if none was set."""
    return _ignore if _hook is None else _hook.function


def _ignore(definition: str, arguments: Mapping[str, Any]) -> None:
    del definition, arguments


def add_listener(listener: Listener) -> None:
    """Have a listener asked about each function, from now on."""
    global _listeners  # noqa: PLW0603 likewise
    with _lock:
        _listeners = (*_listeners, listener)
    _changed()


def remove_listener(listener: Listener) -> None:
    """Do not ask it any more; nothing happens if it was not asked."""
    global _listeners  # noqa: PLW0603 likewise
    with _lock:
        _listeners = tuple(other for other in _listeners if other is not listener)
    _changed()


def notes_for(definition: str, names: tuple[str, ...]) -> tuple[Note, ...]:
    """What is to be called before each call of a function."""
    listeners = (*_listeners, _hook) if _hook is not None else _listeners
    return tuple(note for listener in listeners if (note := listener.bind(definition, names)) is not None)


def is_listened() -> bool:
    """Whether anybody listens."""
    return _hook is not None or bool(_listeners)


def on_change(then: Callable[[], None]) -> None:
    """Call a function whenever somebody else listens than before."""
    _on_change.append(then)


def _changed() -> None:
    for then in _on_change:
        then()
