"""Where the time of a run went: seconds by phase, each counted once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum


class Phase(StrEnum):
    """What a judge does."""

    START = "start"
    """Workers start: their process, and their context on the device."""
    BUILD = "build"
    INPUTS = "inputs"
    REFERENCE = "reference"
    """The reference computes what must come out, and is timed alone."""
    WAIT = "wait"
    """Another run measures on the device."""
    CHECK = "check"
    """Solutions are called, and what came out is compared."""
    WARM_UP = "warm up"
    TIME = "time"
    """Solutions are timed, in turns with what they are compared with."""
    AUDIT = "audit"
    """What was timed is looked at from outside."""


class Ledger:
    """Adds up how long phases took; within another phase, one interrupts it."""

    def __init__(self) -> None:
        self._seconds: dict[Phase, float] = {}
        self._open: list[Phase] = []
        self._since = 0.0

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Count what follows as a phase."""
        self._turn_to(phase)
        try:
            yield
        finally:
            self._turn_to(None)

    def _turn_to(self, phase: Phase | None) -> None:
        now = time.monotonic()
        if self._open:
            self._seconds[self._open[-1]] = self._seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now
        if phase is None:
            self._open.pop()
        else:
            self._open.append(phase)

    def settle(self) -> Mapping[Phase, float]:
        """Seconds by phase since the last time, in the order of `Phase`."""
        told = {phase: self._seconds[phase] for phase in Phase if phase in self._seconds}
        self._seconds = {}
        return told
