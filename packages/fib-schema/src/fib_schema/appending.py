"""Durable appends to files of lines, safe against other writers and against being killed.

A writer locks its file with `flock`, ends a line that another writer left torn, writes its lines, and syncs them before
it returns. If anything fails, the file is cut back to its former size; a new one stays empty. The system releases the
lock when its process dies. A mount that refuses `flock` cannot be written to.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path

from .files import make_folders, naming, sync_paths, write_all

LOCK_TIMEOUT_SECONDS = 60.0
"""A writer holds its lock for one write and one sync; longer means that it is gone."""
_FIRST_PAUSE_SECONDS, _POLL_SECONDS = 0.0005, 0.01  # a writer holds its lock for about 0.3 ms
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC


def append_new_lines(path: str, choose: Callable[[int], Sequence[bytes]]) -> Sequence[bytes]:
    """Append lines that are chosen under the lock, depending on what the file holds by then; returns them, durable.

    Given the file's descriptor, `choose` returns them without their newlines. File and folder need not exist. A process
    that is killed may leave lines that it never acknowledged, the last one torn, or an empty file.

    Raises:
        TimeoutError: Another process held the lock for `LOCK_TIMEOUT_SECONDS`; nothing was appended.
        OSError: Nothing was appended.
    """
    with naming(path):
        descriptor = _open(path)
        try:
            _lock(descriptor, path)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "is not a regular file; lines cannot be appended to it")
            if lines := choose(descriptor):
                _append(descriptor, path, status.st_size, lines)
            return lines
        finally:
            with suppress(OSError):  # such as that of a lock that was not taken
                flock(descriptor, LOCK_UN)  # a process that was forked meanwhile has the descriptor too
            os.close(descriptor)


def _open(path: str) -> int:
    """Open a file; make it, and its folder, if there is none."""
    try:
        return os.open(path, _FLAGS)
    except FileNotFoundError:
        sync_paths(make_folders(Path(path).parent))
        return os.open(path, _FLAGS | os.O_CREAT, 0o666)


def _append(descriptor: int, path: str, size: int, lines: Sequence[bytes]) -> None:
    """Write lines durably behind the last byte, or cut the file back to its size."""
    is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # the next line must not continue that one
    try:
        write_all(descriptor, b"\n" * is_torn + b"\n".join(lines) + b"\n")
        getattr(os, "fdatasync", os.fsync)(descriptor)  # macOS has no fdatasync
        if not size:  # the file may be new
            sync_paths([Path(os.path.realpath(path)).parent])
    except BaseException:
        with suppress(OSError):  # must not hide the error that led here
            os.ftruncate(descriptor, size)
        raise


def _lock(descriptor: int, path: str) -> None:
    """Take the exclusive lock of an open file."""
    pause, end = _FIRST_PAUSE_SECONDS, time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            return flock(descriptor, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                text = f"has been locked for {LOCK_TIMEOUT_SECONDS:g} s by another process, which lslocks names; end it"
                raise TimeoutError(errno.ETIMEDOUT, text, path) from None
            time.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS)
