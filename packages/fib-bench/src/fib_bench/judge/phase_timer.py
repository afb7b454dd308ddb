"""Phase timer. Seconds of a run by phase, each second counted once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..events import Phase


class PhaseTimer:
    """Adds up the seconds of each phase; a nested phase interrupts the outer one."""

    def __init__(self) -> None:
        self._seconds: dict[Phase, float] = {}
        self._open: list[Phase] = []
        self._since = 0.0

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Count the block as a phase."""
        self._switch_to(phase)
        try:
            yield
        finally:
            self._switch_to(None)

    def _switch_to(self, phase: Phase | None) -> None:
        now = time.monotonic()
        if self._open:
            self._seconds[self._open[-1]] = self._seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now
        if phase is None:
            self._open.pop()
        else:
            self._open.append(phase)

    def take(self) -> Mapping[Phase, float]:
        """Return the seconds by phase since the last call, in the order of `Phase`, and reset them."""
        taken = {phase: self._seconds[phase] for phase in Phase if phase in self._seconds}
        self._seconds = {}
        return taken
