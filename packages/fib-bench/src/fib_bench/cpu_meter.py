"""The processor time of a worker, as the kernel counts it: what a worker cannot forge.

Other work on the machine does not add to it, unlike to a clock. The system counts it for the whole
process, threads that have ended included, and for its main thread alone.
"""

from __future__ import annotations

import time
from pathlib import Path

import attrs

_SCHEDULED = 2  # CPUCLOCK_SCHED: the clock of a process counts what its threads ran


@attrs.frozen
class CpuTime:
    """Nanoseconds that a process and its main thread have run."""

    process_ns: int
    main_thread_ns: int

    def __sub__(self, other: CpuTime) -> CpuTime:
        return CpuTime(self.process_ns - other.process_ns, self.main_thread_ns - other.main_thread_ns)


def cpu_time_of(pid: int) -> CpuTime | None:
    """What a process has run so far; None where it has ended or the system does not tell."""
    try:
        main_thread = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]
        return CpuTime(time.clock_gettime_ns(~pid << 3 | _SCHEDULED), int(main_thread))
    except (OSError, IndexError, ValueError):
        return None


class IdleMeter:
    """How busy a process is between requests, when it has nothing to do.

    Args:
        pid: The process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since: tuple[int, CpuTime] | None = None
        self._waited_ns = 0
        self._ran_ns = 0

    def rest(self) -> None:
        """It has answered."""
        ran = cpu_time_of(self._pid)
        self._since = None if ran is None else (time.monotonic_ns(), ran)

    def wake(self) -> None:
        """It is about to be asked."""
        now, ran = time.monotonic_ns(), cpu_time_of(self._pid)
        if self._since is not None and ran is not None:
            self._waited_ns += now - self._since[0]
            self._ran_ns += (ran - self._since[1]).process_ns
        self._since = None

    def seems_busy(self, least_seconds: float) -> bool:
        """Whether it ran for more than half of the time that it rested, of which there was so much."""
        return self._waited_ns >= least_seconds * 1e9 and self._ran_ns > self._waited_ns / 2


def busy_share(pid: int, delay_seconds: float, seconds: float) -> float:
    """How many processors a process keeps busy, after a delay; pools of threads spin for a while before they sleep."""
    time.sleep(delay_seconds)
    before, ran_before = time.monotonic_ns(), cpu_time_of(pid)
    time.sleep(seconds)
    after, ran_after = time.monotonic_ns(), cpu_time_of(pid)
    if ran_before is None or ran_after is None:
        return 0.0
    return (ran_after - ran_before).process_ns / (after - before)
