"""Forks. Locks and objects that are renewed in a forked child process.

`os.fork` copies each lock in its current state. If another thread holds it, that thread does not exist in the child,
and the child would wait for the lock forever.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Renewable(Protocol):
    """An object with state that a forked child must not inherit."""

    def renew_after_fork(self) -> None:
        """Discard state that belongs to threads of the parent process."""


class ForkSafeLock:
    """A re-entrant lock that is free in a forked child, unless the forking thread itself holds it.

    It works as `threading.RLock` does, and takes 0.05 us longer.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def acquire(self, *, blocking: bool = True) -> bool:
        """Take the lock; False if `blocking` is false and another thread holds it."""
        return self._lock.acquire(blocking=blocking)

    def release(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()

    def _renew(self) -> None:
        if self._lock.acquire(blocking=False):  # free, or held by this thread
            self._lock.release()
        else:
            self._lock = threading.RLock()


def renew_on_fork(instance: Renewable) -> None:
    """Call `renew_after_fork` of an object in each forked child, after all locks are renewed; referenced weakly."""
    _renewables.add(instance)


def _renew_all() -> None:
    for lock in list(_locks):
        lock._renew()  # noqa: SLF001 - of this module
    for instance in list(_renewables):
        instance.renew_after_fork()


_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()
_renewables: weakref.WeakSet[Renewable] = weakref.WeakSet()
os.register_at_fork(after_in_child=_renew_all)
