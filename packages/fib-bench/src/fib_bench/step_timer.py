"""Step timer. The seconds of consecutive steps of a process, from its start."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

_STATUS = Path("/proc/self/stat")
_LONGEST_START_SECONDS = 60.0  # a longer age is that of a system that does not tell when a process started


class StepTimer:
    """Measures the steps of this process; the first step begins when the process does.

    Args:
        age_seconds: The age of the process.
        clock: Monotonic seconds.
    """

    def __init__(self, age_seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock() - (process_age_seconds() if age_seconds is None else age_seconds)
        self._seconds: dict[str, float] = {}

    def finish(self, step: str) -> None:
        """Count the time since the last step as this one."""
        now = self._clock()
        self._seconds[step] = self._seconds.get(step, 0.0) + now - self._since
        self._since = now

    @property
    def seconds(self) -> Mapping[str, float]:
        """The seconds of the finished steps, in their order."""
        return dict(self._seconds)


def process_age_seconds() -> float:
    """Seconds since this process started; its CPU seconds where the system does not tell."""
    try:
        ticks = int(_STATUS.read_text("ascii").rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.process_time()
    return age if 0.0 <= age <= _LONGEST_START_SECONDS else time.process_time()
