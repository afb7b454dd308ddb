"""What is measured on the CPU goes before other work there, where the system lets the judge say so.

On a busy machine a thread waits for its turn while others of the same worker spin for it: both its
times become those of the neighbours. The system shares processors out among sessions first, if it
groups them, and among their threads then; a worker is a session of its own. Without the privilege
to go first (``CAP_SYS_NICE``) a worker takes its turn, and a measurement that was disturbed is made again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_FIRST = -20
_LISTINGS = 3
_TRIES, _PAUSE_SECONDS = 4, 0.05  # without CAP_SYS_ADMIN, sessions may be changed ten times in a second


class Precedence:
    """A worker's turn for a processor.

    Args:
        pid: The worker.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._usual: tuple[int, int] | None = None
        self.is_first = False
        """Whether it goes first."""

    def take(self) -> None:
        """Go first from now on, and so will threads that are started from now on."""
        if self.is_first:
            return
        try:
            usual = os.getpriority(os.PRIO_PROCESS, self._pid)
        except OSError:
            return  # it has ended
        self._usual = self._usual or (usual, self._session_niceness())
        self.is_first = True
        self._set_session(_FIRST)
        _set_threads(self._pid, _FIRST)

    def give_back(self, started: Iterable[int] = ()) -> None:
        """Take turns with others again.

        Args:
            started: The worker's child processes, which have its place.
        """
        if not self.is_first or self._usual is None:
            return
        self.is_first = False
        usual, of_session = self._usual
        self._set_session(of_session)
        for pid in (self._pid, *started):
            _set_threads(pid, usual)

    def _set_session(self, niceness: int) -> None:
        for _ in range(_TRIES):
            try:
                self._session.write_text(str(niceness))
            except BlockingIOError:
                time.sleep(_PAUSE_SECONDS)
            except OSError:
                return  # not permitted, or it has ended, or there is no such thing
            else:
                return

    @property
    def _session(self) -> Path:
        return Path("/proc", str(self._pid), "autogroup")

    def _session_niceness(self) -> int:
        """The niceness of the worker's session; 0 where the system does not group by session."""
        try:
            return int(self._session.read_text().rpartition(" ")[2])
        except (OSError, ValueError):
            return 0


def _set_threads(pid: int, niceness: int) -> None:
    """Set the niceness of all threads, and of those that others started before they had it; later ones inherit it."""
    seen: set[str] = set()
    with suppress(OSError):  # it has ended
        for _ in range(_LISTINGS):  # who starts threads without end does not keep the judge
            fresh = set(os.listdir(f"/proc/{pid}/task")) - seen  # noqa: PTH208 for each timed function
            for task in fresh:
                with suppress(OSError):  # not permitted, or it has ended
                    os.setpriority(os.PRIO_PROCESS, int(task), niceness)
            seen |= fresh
