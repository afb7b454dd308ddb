"""Thread clocks. Run times of a worker's threads that are read around every timed pass, from files that stay open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from .outside_checks import refusals

_MAX_BYTES = 256  # three numbers


class ThreadClocks:
    """Reads how long each thread of a process has run.

    A sleeping thread's time is exact; the kernel adds to a running thread's time at each scheduler tick (1 to 10 ms)
    and when it sleeps. The file of a thread is opened once: with 26 threads a reading took 1.3 ms on a busy machine
    when each file was opened anew. An open file belongs to its thread, also if another one gets the same number.

    Args:
        pid: The process.
    """

    def __init__(self, pid: int) -> None:
        self._folder = f"/proc/{pid}/task"
        self._pid = pid
        self._files: dict[str, int] = {}

    def read(self) -> Mapping[int, int]:
        """Nanoseconds that each thread has run, by thread; threads that have ended are absent.

        Raises:
            ProcessLookupError: The process has ended.
            NotPermitted: The system refuses.
        """
        times = {}
        with refusals(self._pid, "the threads"):
            names = os.listdir(self._folder)  # noqa: PTH208 numbers alone, a third of the time
            for ended in self._files.keys() - names:
                os.close(self._files.pop(ended))
            for name in names:
                with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                    times[int(name)] = self._run_time(name)
        return times

    def _run_time(self, name: str) -> int:
        """Raises FileNotFoundError or ProcessLookupError if there is no such thread."""
        if name in self._files:
            try:
                return int(os.pread(self._files[name], _MAX_BYTES, 0).split()[0])
            except ProcessLookupError:  # its number may belong to another thread now
                os.close(self._files.pop(name))
        self._files[name] = os.open(f"{self._folder}/{name}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        return int(os.pread(self._files[name], _MAX_BYTES, 0).split()[0])

    def close(self) -> None:
        """Close all files; a further reading opens them again."""
        while self._files:
            os.close(self._files.popitem()[1])
