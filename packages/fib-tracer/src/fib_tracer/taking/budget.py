"""Budget: how many bytes of copies may be in memory at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

_LONGEST_SECONDS = 0.05
"""Of a wait: what is waited for may have been given back before it began."""


class Budget:
    """Bytes that are taken before a copy is made and given back when it is stored or dropped."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.renew()

    def renew(self) -> None:
        """Begin with nothing taken, in a forked process."""
        self._taken = 0
        self._changed = threading.Condition()

    @property
    def taken_bytes(self) -> int:
        """What is in memory now."""
        return self._taken

    def take(self, size_bytes: int) -> bool:
        """Take some; False if there is not so much left."""
        with self._changed:
            if self._taken + size_bytes > self.size_bytes:
                return False
            self._taken += size_bytes
            return True

    def give(self, size_bytes: int) -> None:
        """Give some back."""
        with self._changed:
            self._taken -= size_bytes
            self._changed.notify_all()

    def giver(self, size_bytes: int) -> Callable[[], None]:
        """What gives some back later; in a process that was forked meanwhile, nothing, for it has taken nothing."""
        taken_under = self._changed

        def give() -> None:
            if self._changed is taken_under:
                self.give(size_bytes)

        return give

    def wait(self, timeout_seconds: float) -> None:
        """Wait until something is given back, or for a time."""
        with self._changed:
            self._changed.wait(min(timeout_seconds, _LONGEST_SECONDS))
