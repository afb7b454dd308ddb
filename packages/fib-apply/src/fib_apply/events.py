"""Events: changes of state in routing. Each is logged as one line and passed to the listeners of events.

Listeners are called in the thread in which a state changes, never during a routed call that nothing changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, TypeAlias

import attrs
from fib_compile.forking import ForkSafeLock
from fib_schema.display import counted

from .log import logger
from .signal_errors import is_from_signal_handler

_SHOWN = 4


@attrs.frozen
class Event:
    """Base of all events; its text is the line that is logged."""

    level: ClassVar[int] = logging.INFO
    """The level of the line."""

    @property
    def severity(self) -> int:
        """The level of the line of this event."""
        return self.level


@attrs.frozen
class Routed(Event):
    """The recorded keys of a definition on this machine, when routing starts or has been reloaded."""

    definition: str
    keys_by_solution: Mapping[str, int]
    """The number of keys that each solution serves."""
    keys_by_reason: Mapping[str, int]
    """The number of keys that are left to the fallback, for each reason."""

    def __str__(self) -> str:
        routed, left = sum(self.keys_by_solution.values()), sum(self.keys_by_reason.values())
        text = f"{self.definition}: routed {routed} of {counted(routed + left, 'key')}"
        if routed:
            text += f" to {_counted(self.keys_by_solution)}"
        if left:
            text += f", {left} left to the fallback because {_counted(self.keys_by_reason)}"
        return text


@attrs.frozen
class Quarantined(Event):
    """A solution that is no longer called."""

    level = logging.WARNING
    definition: str
    solution: str
    reason: str

    def __str__(self) -> str:
        return f"{self.definition}: solution {self.solution!r} is quarantined: {self.reason}"


@attrs.frozen
class BuildFinished(Event):
    """A solution that was compiled, probed and loaded, or that is left out."""

    solution: str
    definition: str
    seconds: float
    """For compiling and loading."""
    problem: str | None
    """Reason for leaving the solution out; None if it is usable."""

    @property
    def severity(self) -> int:
        """A warning if the solution is left out."""
        return logging.INFO if self.problem is None else logging.WARNING

    def __str__(self) -> str:
        if self.problem is None:
            return f"{self.definition}: solution {self.solution} is built, {self.seconds:.2f} s"
        return f"solution {self.solution} is left out: {self.problem}"


@attrs.frozen
class ProbeFinished(Event):
    """A solution that was loaded in a child process; cached verdicts are not events."""

    level = logging.DEBUG
    solution: str
    definition: str
    seconds: float
    """Since the last one; the first of a process includes its start."""
    problem: str | None

    def __str__(self) -> str:
        result = "is safe to load" if self.problem is None else f"is not safe to load: {self.problem}"
        return f"{self.definition}: solution {self.solution} {result}, {self.seconds:.2f} s"


@attrs.frozen
class FirstRunFinished(Event):
    """A solution whose kernels were compiled by a run in a child process, for one call."""

    definition: str
    solution: str
    seconds: float
    problem: str | None

    def __str__(self) -> str:
        result = "is done" if self.problem is None else f"failed: {self.problem}"
        return f"{self.definition}: the first run of {self.solution} {result}, {self.seconds:.2f} s"


@attrs.frozen
class Reloaded(Event):
    """A table that replaced another one."""

    cause: str
    """``call``, ``signal`` or ``watch``."""
    seconds: float
    is_changed: bool
    """Whether the tables differ."""

    def __str__(self) -> str:
        result = "the table has changed" if self.is_changed else "the table is the same"
        return f"reloaded ({self.cause}): {result}, {self.seconds:.2f} s"


@attrs.frozen
class ReloadFailed(Event):
    """A reload that left the earlier table in place."""

    level = logging.ERROR
    cause: str
    """``call``, ``signal`` or ``watch``."""
    seconds: float
    problem: str

    def __str__(self) -> str:
        return f"the reload ({self.cause}) failed, and the earlier table stays: {self.problem}"


@attrs.frozen
class ConfigRejected(Event):
    """A configuration file that is not usable."""

    level = logging.ERROR
    variable: str
    """The environment variable that names it."""
    path: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.variable}={self.path}: nothing is routed until the file is corrected, because its settings may "
            f"exclude solutions: {self.problem}\n  'fib-apply check' shows the same"
        )


@attrs.frozen
class OperationFailed(Event):
    """Something beside routing that does not work, such as the output of metrics; routing goes on."""

    level = logging.WARNING
    problem: str

    def __str__(self) -> str:
        return self.problem


Listener: TypeAlias = Callable[[Event], object]

_lock = ForkSafeLock()  # reentrant: a signal handler may change listeners during a change
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
    logger.log(event.severity, "%s", event)
    for listener in _listeners:
        try:
            listener(event)
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            if id(listener) not in _failed:
                _failed.add(id(listener))
                logger.warning("a listener of events raised %s: %s", type(error).__name__, error)


def _counted(counts: Mapping[str, int]) -> str:
    """The names with most keys, each with its number."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(_shown(ordered))


def _shown(ordered: list[tuple[str, int]]) -> Iterator[str]:
    for name, count in ordered[:_SHOWN]:
        yield f"{name} ({count})"
    if len(ordered) > _SHOWN:
        yield f"{len(ordered) - _SHOWN} more"
