"""Background activity. Checks that a worker is idle after its replies: work must end when a call returns.

Pools of threads spin for a while after a parallel region, up to 0.2 s. So the judge first waits until the worker is
idle and measures only then. From that moment on nothing is excused: whatever the worker and its children run while
other functions are timed counts. Processor time, and the time that threads wait for a processor, are read from the
kernel: other work on the machine neither adds to them nor hides them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from contextlib import suppress

from fib_schema import EvaluationStatus

from ..worker.client import Worker
from ..worker.outside_checks import read_short
from .rpc import Rejected

_SCHEDULED = 2  # CPUCLOCK_SCHED: the clock of a process includes its threads, also those that have ended
_LOOK_SECONDS = 0.003
_SETTLE_SECONDS = 0.5  # more than twice the spin time of a thread pool
_IDLE_CORES = 0.25
_MIN_SECONDS = 0.1  # of observation before a verdict


class BackgroundActivity:
    """Observes one worker while it has nothing to do.

    Args:
        worker: The worker.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._seconds = 0.0
        self._used_seconds = 0.0
        self._before: tuple[float, float] | None = None
        self._last = (0.0, 0.0)
        """The time of the last reading, and the seconds used until then."""

    def begin(self) -> None:
        """Wait until the worker is idle, and observe it from then on.

        Raises:
            Rejected: It does not become idle.
        """
        end, cores = time.monotonic() + _SETTLE_SECONDS, math.inf
        while cores > _IDLE_CORES and time.monotonic() < end:
            cores = self._look(_LOOK_SECONDS)
        self._before = self._last
        if cores > _IDLE_CORES:
            self._decide()

    def end(self) -> None:
        """Stop observing: the worker is about to get a request."""
        if self._before is not None:
            begin, used = self._before
            self._seconds += time.monotonic() - begin
            self._used_seconds += max(self._used() - used, 0.0)
            self._before = None

    def check(self) -> None:
        """Decide, after the last reply of the worker.

        Raises:
            Rejected: It was active.
        """
        if self._before is None:
            self.begin()
        is_idle = self._look(_LOOK_SECONDS) <= _IDLE_CORES
        self.end()
        if not is_idle or self._cores > _IDLE_CORES:
            self._decide()

    def _decide(self) -> None:
        """Observe once more, for long enough; that and all observations together decide."""
        self.end()
        cores = self._look(_MIN_SECONDS)
        if self._seconds >= _MIN_SECONDS:
            cores = max(cores, self._cores)
        if cores > _IDLE_CORES:
            problem = f"background activity: the worker used {cores:.1f} CPU cores after its last reply"
            raise Rejected(EvaluationStatus.REWARD_HACK, f"{problem}; work must end when a call returns")

    @property
    def _cores(self) -> float:
        return self._used_seconds / max(self._seconds, _LOOK_SECONDS)

    def _look(self, seconds: float) -> float:
        """Cores used during some time from now on; its end is `_last`."""
        begin, before = time.monotonic(), self._used()
        time.sleep(seconds)
        used = self._used()
        self._last = time.monotonic(), used
        return (used - before) / (self._last[0] - begin)

    def _used(self) -> float:
        return demand_seconds([self._worker.pid, *self._worker.started()])


def demand_seconds(pids: Iterable[int]) -> float:
    """The processor time that some processes have used so far, and the time that their threads have waited for one.

    On a busy machine a thread that is always runnable gets a small share of a processor.
    """
    pids = list(pids)
    return cpu_seconds(pids) + sum(_waited_ns(pid) for pid in pids) / 1e9


def _waited_ns(pid: int) -> int:
    """Nanoseconds that the threads of a process have waited in run queues; 0 where the kernel does not report it."""
    waited = 0
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/task"):
            with suppress(OSError):
                waited += int(read_short(f"{entry.path}/schedstat").split()[1])
    return waited


def cpu_seconds(pids: Iterable[int]) -> float:
    """The processor time that some processes have used so far; one that has ended counts for nothing."""
    nanoseconds = 0
    for pid in pids:
        with suppress(OSError):
            nanoseconds += time.clock_gettime_ns(~pid << 3 | _SCHEDULED)
    return nanoseconds / 1e9
