"""The processor time of a worker, as the kernel counts it: what a worker cannot forge.

Other work on the machine does not add to it, unlike to a clock. The system counts it for the whole
process, threads that have ended included, and for its main thread alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import attrs

_SCHEDULED = 2  # CPUCLOCK_SCHED: the clock of a process counts what its threads ran
_TICK_SECONDS = 0.01  # at the latest then the system counts what a thread has run


@attrs.frozen
class CpuTime:
    """Nanoseconds that a process and its main thread have run."""

    process_ns: int
    main_thread_ns: int

    def __sub__(self, other: CpuTime) -> CpuTime:
        return CpuTime(self.process_ns - other.process_ns, self.main_thread_ns - other.main_thread_ns)

    def __floordiv__(self, count: int) -> CpuTime:
        return CpuTime(self.process_ns // count, self.main_thread_ns // count)

    def least(self, other: CpuTime) -> CpuTime:
        """Of each number the smaller one."""
        return CpuTime(*map(min, attrs.astuple(self), attrs.astuple(other)))


def cpu_time_of(pid: int) -> CpuTime | None:
    """What a process has run so far; None where it has ended or the system does not tell."""
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat", "rb") as file:  # noqa: PTH123 thousands of times in a run
            ran, *_ = file.read().split()
        return CpuTime(time.clock_gettime_ns(~pid << 3 | _SCHEDULED), int(ran))
    except (OSError, IndexError, ValueError):
        return None


def cpu_time_asleep(pid: int) -> CpuTime | None:
    """The same once its main thread sleeps: what one runs is counted at the next tick, or then."""
    end = time.monotonic() + _TICK_SECONDS
    with suppress(OSError, IndexError):
        while time.monotonic() < end:
            with open(f"/proc/{pid}/task/{pid}/stat", "rb") as file:  # noqa: PTH123 once for each pass
                if file.read().rpartition(b")")[2].split()[0] != b"R":
                    break
    return cpu_time_of(pid)


class Stopwatch:
    """The judge's own clocks around a request. Other work on the machine adds to both; there are several tries.

    Args:
        pid: Who is asked.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ran = cpu_time_of(pid)
        self._begin = time.monotonic_ns()

    def taken_ns(self) -> float:
        """How long it took so far."""
        return float(time.monotonic_ns() - self._begin)

    def ran_ns(self) -> float:
        """How long the main thread of the asked one ran until it slept; 0 where the system does not tell."""
        ran = cpu_time_asleep(self._pid)
        return 0.0 if ran is None or self._ran is None else float((ran - self._ran).main_thread_ns)


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

    def seems_busy(self, least_seconds: float, share: float) -> bool:
        """Whether it ran for more than a share of the time that it rested, of which there was so much.

        It need not have had a processor for all of that time: others were at work.
        """
        return self._waited_ns >= least_seconds * 1e9 and self._ran_ns > share * self._waited_ns


def busy_share(pids: Iterable[int], delay_seconds: float, seconds: float) -> float:
    """How many processors some processes keep busy, or would if they got them, after a delay.

    Pools of threads spin for a while before they sleep.
    """
    time.sleep(delay_seconds)
    before, wanted_before = time.monotonic_ns(), {pid: _wanted_ns(pid) for pid in pids}
    time.sleep(seconds)
    wanted = sum(max(_wanted_ns(pid) - already, 0) for pid, already in wanted_before.items())
    return wanted / (time.monotonic_ns() - before)


def _wanted_ns(pid: int) -> int:
    """How long the threads that there are have run, and have waited for a processor."""
    wanted = 0
    for file in Path("/proc", str(pid), "task").glob("*/schedstat"):
        with suppress(OSError, ValueError):  # the thread has ended meanwhile
            wanted += sum(map(int, file.read_text().split()[:2]))
    return wanted
