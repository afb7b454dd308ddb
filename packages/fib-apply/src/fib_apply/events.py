"""Events and counts of routing: changes of state, logged and passed to listeners, and counts of calls.

Events are emitted in the thread in which a state changes, never during a routed call that nothing changes.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from typing import Any, TypeAlias

import attrs
from fib_schema.display import counted

logger = logging.getLogger("fib_apply")
_reported: dict[Hashable, object] = {}
_SHOWN = 4


class EventKind(StrEnum):
    """Kinds of events."""

    ROUTED = "routed"
    """The recorded keys of a definition on this machine, when routing starts or has been reloaded. Its details are
    ``keys_by_solution``, the keys that each solution serves, and ``keys_by_reason``, those left to the fallback."""
    BUILT = "built"
    """A solution was compiled, probed and loaded, or is left out."""
    FIRST_RUN = "first run"
    """A solution was run in a child process, so that its kernels are compiled for one call."""
    QUARANTINED = "quarantined"
    """A solution is no longer called."""
    RELOADED = "reloaded"
    """A table has replaced another one, or could not. Its detail ``is_changed`` says whether the tables differ."""


@attrs.frozen
class Event:
    """One change of state; its text is the line that is logged."""

    kind: EventKind
    text: str
    level: int = logging.INFO
    """The level of the line."""
    definition: str = ""
    solution: str = ""
    seconds: float = 0.0
    """Duration of what has ended."""
    problem: str | None = None
    """Reason for a failure; None after a success."""
    details: Mapping[str, Any] = attrs.field(factory=dict)

    def __str__(self) -> str:
        return self.text


def routed(definition: str, by_solution: Mapping[str, int], by_reason: Mapping[str, int]) -> Event:
    """The event of a definition that is routed from now on."""
    served, left = sum(by_solution.values()), sum(by_reason.values())
    text = f"{definition}: routed {served} of {counted(served + left, 'key')}"
    if served:
        text += f" to {_most(by_solution)}"
    if left:
        text += f", {left} left to the fallback because {_most(by_reason)}"
    details = {"keys_by_solution": dict(by_solution), "keys_by_reason": dict(by_reason)}
    return Event(EventKind.ROUTED, text, definition=definition, details=details)


_OUTCOMES = {
    EventKind.BUILT: ("is built", "is left out", logging.WARNING),
    EventKind.FIRST_RUN: ("was run first", "failed in its first run", logging.INFO),
}
"""Texts of success and failure, and the level of a failure."""


def finished(kind: EventKind, definition: str, solution: str, seconds: float, problem: str | None = None) -> Event:
    """The event of a build or a first run that has ended."""
    done, failed, level_of_failure = _OUTCOMES[kind]
    result = f"{done}, {seconds:.2f} s" if problem is None else f"{failed}: {problem}"
    text = f"{definition}: solution {solution} {result}"
    return Event(
        kind, text, logging.INFO if problem is None else level_of_failure, definition, solution, seconds, problem
    )


def quarantined(definition: str, solution: str, reason: str) -> Event:
    """The event of a solution that is no longer called."""
    text = f"{definition}: solution {solution!r} is quarantined: {reason}"
    return Event(EventKind.QUARANTINED, text, logging.WARNING, definition, solution, problem=reason)


def reloaded(seconds: float, *, is_changed: bool = False, error: Exception | None = None) -> Event:
    """The event of a table that has replaced another one, or of an error that left the earlier one in place."""
    if error is None:
        text = f"reloaded: the table {'has changed' if is_changed else 'is the same'}, {seconds:.2f} s"
        return Event(EventKind.RELOADED, text, seconds=seconds, details={"is_changed": is_changed})
    problem = f"{type(error).__name__}: {error}"
    text = f"the reload failed, and the earlier table stays: {problem}"
    return Event(EventKind.RELOADED, text, logging.ERROR, seconds=seconds, problem=problem)


def _most(counts: Mapping[str, int]) -> str:
    """The names with most keys, each with its number."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name} ({count})" for name, count in ordered[:_SHOWN]]
    return ", ".join(shown + [f"{len(ordered) - _SHOWN} more"] * (len(ordered) > _SHOWN))


Listener: TypeAlias = Callable[[Event], object]

_lock = threading.Lock()
_listeners: tuple[Listener, ...] = ()
_failed: set[int] = set()


def add_event_listener(listener: Listener) -> None:
    """Call a function with each event from now on, in any thread. What it raises is logged once and goes no further."""
    global _listeners  # noqa: PLW0603 one tuple per process
    with _lock:
        _listeners = (*(other for other in _listeners if other != listener), listener)


def remove_event_listener(listener: Listener) -> None:
    """Remove a listener; does nothing if it was not added."""
    global _listeners  # noqa: PLW0603 one tuple per process
    with _lock:
        _listeners = tuple(other for other in _listeners if other != listener)
        _failed.discard(id(listener))


def is_observed(level: int) -> bool:
    """Whether events of a level are logged or listened to."""
    return bool(_listeners) or logger.isEnabledFor(level)


def emit(event: Event) -> None:
    """Log an event and pass it to the listeners; no lock may be held."""
    logger.log(event.level, "%s", event)
    for listener in _listeners:
        try:
            listener(event)
        except Exception as error:  # noqa: BLE001 of a program's function
            if id(listener) not in _failed:
                _failed.add(id(listener))
                logger.warning("a listener of events raised %s: %s", type(error).__name__, error)


def is_first(reason: Hashable) -> bool:
    """Whether this is the first call for a reason; of several threads, one is the first."""
    token = object()
    return _reported.setdefault(reason, token) is token


def warn_once(reason: Hashable, text: str) -> None:
    """Log a warning at the first call for a reason."""
    if is_first(reason):
        logger.warning("%s", text)


# -- counts of calls --------------------------------------------------------------------------------

BEING_BUILT = "being built"
"""The only reason for a miss that ends by itself."""
FALLBACK_IS_BEST = "the fallback is the best"
"""The reason for a miss whose key is recorded: the best solution is the fallback in another form."""
NOTHING_BUILT = "nothing built"
"""The reason for a miss whose solutions could not be built, or not be loaded."""
UNREADABLE = "its file cannot be used: "
"""The beginning of a reason that holds until the data set is loaded again."""
QUARANTINED = "quarantined"
"""The reason for a miss whose solutions are left out, at least one of them because it failed in a call."""

_MAX_KEYS = 4096
_OTHER_KEYS = "other keys"


class Counter:
    """A counter. An increment is one call of C code, so that no two threads get the same number; it takes 30 ns."""

    __slots__ = ("_count", "increment")

    def __init__(self) -> None:
        self._count = itertools.count()
        self.increment = self._count.__next__
        """Add one."""

    def __int__(self) -> int:
        return int(repr(self._count)[len("count(") : -1])  # `next` would count


@attrs.frozen
class DefinitionStats:
    """Counts of the calls of one definition."""

    hits: Mapping[str, int]
    """Calls that a selected solution served, by key."""
    misses: Mapping[str, int]
    """Calls that the fallback served, by reason."""
    errors: Mapping[str, int]
    """Hits that raised, by solution; with `OnError.FALLBACK` the fallback then served the call."""

    @property
    def calls(self) -> int:
        """All calls."""
        return sum(self.hits.values()) + sum(self.misses.values())


class CallMetrics:
    """The counters of one definition."""

    def __init__(self) -> None:
        self._hits: dict[Hashable, Counter] = {}
        self._misses: dict[str, Counter] = {}
        self._errors: dict[str, Counter] = {}

    def hit(self, key: Hashable) -> Counter:
        """The counter of hits of a key or its text; one for all keys beyond the first `_MAX_KEYS`."""
        if len(self._hits) >= _MAX_KEYS and key not in self._hits:
            key = _OTHER_KEYS
        return self._hits.get(key) or self._hits.setdefault(key, Counter())

    def miss(self, reason: str) -> Counter:
        """The counter of misses for a reason."""
        return self._misses.get(reason) or self._misses.setdefault(reason, Counter())

    def error(self, solution: str) -> Counter:
        """The counter of errors of a solution."""
        return self._errors.setdefault(solution, Counter())

    def snapshot(self) -> DefinitionStats:
        """The current counts."""
        return DefinitionStats(_values(self._hits), _values(self._misses), _values(self._errors))


def _values(counters: Mapping[Any, Counter]) -> dict[str, int]:
    """The counts by text, sorted; keys of equal texts are counted together."""
    found: dict[str, int] = {}
    for name, counter in list(counters.items()):  # other threads add some
        text = str(name)
        found[text] = found.get(text, 0) + int(counter)
    return {text: found[text] for text in sorted(found) if found[text]}
