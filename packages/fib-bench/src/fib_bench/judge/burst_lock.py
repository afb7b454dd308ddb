"""Burst lock. It separates timed passes from all other device work of the judges of one user.

A readers-writer lock of two files, each an ``flock``. Judges share it while they or their workers use the device, and
hold it alone for a timed pass, a few milliseconds. Who wants it waits in a queue, so that a pass is not overtaken by
judges that come later. The kernel releases both when a process ends, however that happens.

Sharing is released at every request to a worker if another judge waits. Compilation, the start of workers and waits
do not share it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from pathlib import Path

import torch

from .device_lock import FOLDER_VARIABLE, identity_of, in_own_folder, open_lock_file


class _Mode(Enum):
    NONE = fcntl.LOCK_UN
    SHARED = fcntl.LOCK_SH
    ALONE = fcntl.LOCK_EX


class BurstLock:
    """The burst lock of one device, for one judge.

    Args:
        path: Its file, made if it is not there; the queue has the same name with another suffix.
        is_private: Whether only this user may lock it; else all users may.

    Raises:
        UnsafeFolder: Another user could replace the folder or a file.
        OSError: A file cannot be made.
    """

    def __init__(self, path: Path, *, is_private: bool = False) -> None:
        self._lock = open_lock_file(path, is_private=is_private)
        self._queue = open_lock_file(path.with_suffix(".queue"), is_private=is_private)
        self._mode = self._wanted = _Mode.NONE
        self._is_kept = False
        self.waited_seconds = 0.0
        """The sum of all waits for other judges."""

    def __del__(self) -> None:
        for name in ("_lock", "_queue"):
            with suppress(AttributeError, OSError):
                os.close(getattr(self, name))

    @property
    def is_alone(self) -> bool:
        """Whether this judge holds the lock alone."""
        return self._mode is _Mode.ALONE

    @property
    def is_shared(self) -> bool:
        """Whether this judge shares the lock."""
        return self._mode is _Mode.SHARED

    @property
    def is_wanted(self) -> bool:
        """Whether another judge waits in the queue."""
        try:
            fcntl.flock(self._queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._queue, fcntl.LOCK_UN)
        return False

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Share the lock during a block."""
        with self._held_as(_Mode.SHARED):
            yield

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Do not hold the lock during a block."""
        with self._held_as(_Mode.NONE):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock alone during a block."""
        with self._held_as(_Mode.ALONE):
            yield

    def keep(self, is_kept: bool) -> None:
        """Share the lock outside of blocks and in those of `apart`, too, or do so no more."""
        self._is_kept = is_kept
        self._want(self._wanted)

    def give_way(self) -> None:
        """Let those who wait go first, and share the lock again."""
        self._change(_Mode.SHARED)

    @contextmanager
    def _held_as(self, mode: _Mode) -> Iterator[None]:
        before = self._wanted
        self._want(mode)
        try:
            yield
        finally:
            self._want(before)

    def _want(self, wanted: _Mode) -> None:
        self._wanted = wanted
        mode = _Mode.SHARED if self._is_kept and wanted is _Mode.NONE else wanted
        if mode is not self._mode:
            self._change(mode)

    def _change(self, mode: _Mode) -> None:
        """Release the lock first: two judges that share it and want it alone would wait for each other."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        self._mode = _Mode.NONE
        if mode is _Mode.NONE:
            return
        begin = time.monotonic()
        fcntl.flock(self._queue, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._lock, mode.value)
        finally:
            fcntl.flock(self._queue, fcntl.LOCK_UN)
        self._mode = mode
        self.waited_seconds += time.monotonic() - begin


def bursts_of(device: torch.device) -> BurstLock:
    """The burst lock of a device among the judges of this user, or among all that share the folder of locks.

    Raises:
        UnsafeFolder: Another user could replace the folder that `FOLDER_VARIABLE` names, or a file in it.
        OSError: A file cannot be made.
    """
    name = f"{identity_of(device)}.bursts"
    if folder := os.environ.get(FOLDER_VARIABLE):
        return BurstLock(Path(folder) / name)
    return in_own_folder(name, partial(BurstLock, is_private=True))
