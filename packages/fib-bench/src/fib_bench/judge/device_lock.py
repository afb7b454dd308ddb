"""Device lock. It separates timed passes from all other work of the judges of one user on a physical device.

A readers-writer lock of two files, each an ``flock``. On a CUDA device judges share it while they or their workers use
the device, and hold it alone for a timed pass, a few milliseconds; on the CPU they hold it alone for a pass, and
otherwise not. Judges that want it wait in a queue, so that a pass is not overtaken by judges that come later. The
kernel releases both files when a process ends, however that happens.

Sharing is released at every request to a worker if another judge waits. Compilation, the start of workers and waits
do not share it.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

import torch
from fib_schema import get_fib_cache_path
from fib_schema.files import private_folder

FOLDER_VARIABLE = "FIB_BENCH_LOCKS"
"""Another folder of locks, for containers that share a device but not a cache."""
_NOTICE_SECONDS = 10.0


class _Mode(Enum):
    NONE = fcntl.LOCK_UN
    SHARED = fcntl.LOCK_SH
    ALONE = fcntl.LOCK_EX


class DeviceLock:
    """The lock of one device, for one judge.

    Args:
        path: Its file, made if it is not there; the queue has the same name with another suffix.

    Raises:
        UnsafePath: Another user could replace the folder.
        OSError: A file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = private_folder(path.parent) / path.name
        self._lock = _open(self._path)
        self._queue = _open(self._path.with_suffix(".queue"))
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
        if not _try(self._queue, fcntl.LOCK_EX):
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
        self._wait(self._queue, fcntl.LOCK_EX)
        try:
            self._wait(self._lock, mode.value)
        finally:
            fcntl.flock(self._queue, fcntl.LOCK_UN)
        self._mode = mode
        self.waited_seconds += time.monotonic() - begin

    def _wait(self, descriptor: int, how: int) -> None:
        """Wait for a file; a long wait, as for a judge that is stopped, is reported once."""
        if _try(descriptor, how):
            return
        notice = threading.Timer(_NOTICE_SECONDS, self._report)
        notice.daemon = True
        notice.start()
        try:
            fcntl.flock(descriptor, how)
        finally:
            notice.cancel()

    def _report(self) -> None:
        with suppress(OSError):  # a closed stderr must not end the run
            print(f"waiting for device lock {self._path} (`fuser` shows its holder)", file=sys.stderr, flush=True)


def lock_of(device: torch.device) -> DeviceLock:
    """The lock of a device among the judges of this user, not yet held.

    Raises:
        UnsafePath: Another user could replace the folder of locks.
        OSError: A file cannot be made.
    """
    return DeviceLock(_path_of(device, "lock"))


@contextmanager
def extra_memory(device: torch.device) -> Iterator[None]:
    """A block in which this judge alone, of those of this user, may exceed its share of a device's memory.

    Raises:
        UnsafePath: Another user could replace the folder of locks.
        OSError: The file cannot be made.
    """
    path = _path_of(device, "memory")
    descriptor = _open(private_folder(path.parent) / path.name)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def identity_of(device: torch.device) -> str:
    """The device's UUID, which no other device has; ``cpu`` for the processors of this machine."""
    if device.type == "cpu":
        return "cpu"
    return re.sub(r"[^\w-]", "", str(torch.cuda.get_device_properties(device).uuid))


def _path_of(device: torch.device, suffix: str) -> Path:
    """A file for a device; the machine's name is part of that of a CPU, because a cache may be shared by machines."""
    folder = os.environ.get(FOLDER_VARIABLE) or get_fib_cache_path() / "fib-bench-locks"
    name = platform.node() if device.type == "cpu" else identity_of(device)
    return Path(folder) / f"{name}.{suffix}"


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _try(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
