"""State of all keys when an engine is about to capture CUDA graphs. Errors become part of the result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

import attrs
from fib_schema.display import counted

from ..key import ApplyKey
from ..log import logger
from ..routing.native.module import guards_in_use
from ..signal_errors import is_from_signal_handler
from .readiness import KeyState


@attrs.frozen
class Readiness:
    """Solutions available to captured calls, by definition and recorded key."""

    ready: Mapping[str, Mapping[ApplyKey, str]]
    """The solutions that are ready."""
    not_ready: Mapping[str, Mapping[ApplyKey, str]]
    """Reasons for capturing the fallback for the other keys."""
    is_finished: bool
    """Whether all background work ended before the deadline."""
    seconds: float
    problem: str | None = None
    """Reason for missing results; None if the warm-up ran."""
    guards: str = ""
    """The guards that routes use, and why they are not native ones; empty if nothing is routed."""

    def __str__(self) -> str:
        ready, others = (sum(map(len, found.values())) for found in (self.ready, self.not_ready))
        text = f"warm-up: ready for {ready} of {counted(ready + others, 'key')}, {self.seconds:.2f} s"
        if not self.is_finished and self.problem is None:
            text += "; the deadline passed before all background work was done"
        text += f"; {self.guards}" if self.guards else ""
        return text if self.problem is None else f"{text}; {self.problem}"


@attrs.define
class WarmUpOutcome:
    """The outcome of a warm-up while it is being made."""

    began: float = attrs.field(factory=time.monotonic)
    states: Mapping[str, list[KeyState]] = attrs.field(factory=dict)
    is_finished: bool = False
    problem: str | None = None
    guards: str = ""

    def add(self, states: Mapping[str, list[KeyState]]) -> None:
        """Set the states of keys, by definition."""
        self.states = states
        self.guards = guards_in_use()

    def readiness(self) -> Readiness:
        """The result."""
        ready: dict[str, dict[ApplyKey, str]] = {}
        not_ready: dict[str, dict[ApplyKey, str]] = {}
        for name, states in self.states.items():
            for state in states:
                if state.solution is not None:
                    ready.setdefault(name, {})[state.key] = state.solution
                else:
                    not_ready.setdefault(name, {})[state.key] = state.reason or ""
        return Readiness(ready, not_ready, self.is_finished, time.monotonic() - self.began, self.problem, self.guards)


@contextlib.contextmanager
def observed_warm_up() -> Iterator[WarmUpOutcome]:
    """Turn an exception of the block into a problem of the outcome: an engine must go on without routing."""
    outcome = WarmUpOutcome()
    try:
        yield outcome
    except Exception as error:
        if is_from_signal_handler(error):
            raise
        outcome.problem = f"{type(error).__name__}: {error}"
    logger.info("%s", outcome.readiness())
