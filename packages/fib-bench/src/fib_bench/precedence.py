"""What is measured on the CPU goes before other work there, where the system lets the judge say so.

On a busy machine a thread waits for its turn while others of the same worker spin for it: both its
times become those of the neighbours. The system shares processors out among sessions first, if it
groups them, and among their threads then; a worker is a session of its own. Without the privilege
to go first (``CAP_SYS_NICE``) a worker takes its turn, and a measurement that was disturbed is made again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_FIRST = -20


class Precedence:
    """A worker's turn for a processor.

    Args:
        pid: The worker.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: tuple[int, str | None] | None = None

    def take(self) -> None:
        """Go first from now on, and so will threads that are started from now on."""
        if self._before is not None:
            return
        with suppress(OSError):  # it has ended
            self._before = os.getpriority(os.PRIO_PROCESS, self._pid), self._session_niceness()
            self._set(_FIRST, str(_FIRST))

    def give_back(self) -> None:
        """Take turns with others again."""
        if self._before is not None:
            self._set(*self._before)
            self._before = None

    def _set(self, niceness: int, session: str | None) -> None:
        """Set the niceness of all threads, and that of the session where there is such a thing."""
        if session is not None:
            with suppress(OSError):  # not permitted, or it has ended
                self._session.write_text(session)
        with suppress(OSError):
            for task in os.listdir(f"/proc/{self._pid}/task"):  # noqa: PTH208 for each timed function
                os.setpriority(os.PRIO_PROCESS, int(task), niceness)

    @property
    def _session(self) -> Path:
        return Path("/proc", str(self._pid), "autogroup")

    def _session_niceness(self) -> str | None:
        """The niceness of the worker's session; None where the system does not group by session."""
        try:
            return self._session.read_text().rpartition(" ")[2].strip()
        except OSError:
            return None
