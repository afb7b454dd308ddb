"""Durable appends to files of lines, safe against other writers and against being killed.

A writer locks the folder of its file, ends a line that another writer left torn, writes its lines, and syncs them
before it returns. If anything fails, the file is cut back to its former size, and a file that was made is removed. A
link to a file is followed, so that all its writers lock one folder; hard links of one
file in several folders are not protected from each other.

An account that may only read a file can still hold its `flock`. So no data file is locked, but a hidden file ``.lock``
in its folder, which only accounts that may write to the folder can open. It is made by the first writer and stays. The
system releases the lock when its process dies. A mount that refuses `flock` cannot be written to.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path

from .files import make_folders, naming, sync_data, sync_folders, temporary_path, write_all

LOCK_NAME = ".lock"
"""The file in a folder whose lock writers of the folder's files hold."""
LOCK_TIMEOUT_SECONDS = 60.0
"""A writer holds its lock for one write and one sync; longer means that it is gone."""
_FIRST_PAUSE_SECONDS, _POLL_SECONDS = 0.0005, 0.01  # a writer holds its lock for about 0.3 ms
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC


def append_new_lines(path: str, choose: Callable[[int], Sequence[bytes]]) -> Sequence[bytes]:
    """Append lines that are chosen under the lock, depending on what the file holds by then.

    A process that is killed may leave lines that it never acknowledged, the last one torn, or an empty file.

    Args:
        path: The file, which need not exist; nor need its folder.
        choose: Given the file's descriptor, returns the lines, without their newlines.

    Returns:
        The chosen lines; they are durable.

    Raises:
        OSError: Nothing was appended.
    """
    target = os.path.realpath(path) if os.path.islink(path) else path
    folder = os.path.dirname(target) or "."
    with naming(path), _locked(folder):
        descriptor, is_made = _open(target)
        lines: Sequence[bytes] = ()
        try:
            size = _size(descriptor)
            lines = choose(descriptor)
            if lines:
                _append(descriptor, size, lines)
                if is_made:
                    sync_folders([Path(folder)])
            return lines
        except BaseException:
            lines = ()
            raise
        finally:
            os.close(descriptor)
            if is_made and not lines:
                os.unlink(target)


def _open(path: str) -> tuple[int, bool]:
    """Open a file, and make it if there is none; returns whether it was made."""
    try:
        return os.open(path, _FLAGS), False
    except FileNotFoundError:
        return os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666), True


def _size(descriptor: int) -> int:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file; lines cannot be appended to it")
    return status.st_size


def _append(descriptor: int, size: int, lines: Sequence[bytes]) -> None:
    """Write lines durably behind the last byte, or cut the file back to its size."""
    is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # the next line must not continue that one
    try:
        write_all(descriptor, b"\n" * is_torn + b"\n".join(lines) + b"\n")
        sync_data(descriptor)
    except BaseException:
        with suppress(OSError):  # must not hide the error that led here
            os.ftruncate(descriptor, size)
        raise


# -- locks -------------------------------------------------------------------------------------------


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold the exclusive lock of a folder; a process that is forked meanwhile shares it until it is released.

    Raises:
        TimeoutError: Another process held it for `LOCK_TIMEOUT_SECONDS`.
        OSError: The lock file cannot be made or opened, for example because this account may not write to the folder.
    """
    path = os.path.join(folder, LOCK_NAME)
    descriptor = _open_lock(path)
    try:
        _flock(descriptor, path)
        try:
            yield
        finally:
            flock(descriptor, LOCK_UN)
    finally:
        os.close(descriptor)


def _open_lock(path: str) -> int:
    """Open a lock file; make it, and its folder, if there is none."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            sync_folders(make_folders(Path(folder)))
        temporary = temporary_path(folder)
        descriptor = os.open(temporary, flags | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _give_to_writers(descriptor, os.stat(folder))
            with suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            os.close(descriptor)
            os.unlink(temporary)
        return os.open(path, flags)


def _give_to_writers(descriptor: int, folder: os.stat_result) -> None:
    """Let only accounts that may write to the folder open a new lock file."""
    made = os.fstat(descriptor)
    writers = stat.S_IMODE(folder.st_mode) & 0o022
    if os.geteuid() == 0 or made.st_gid != folder.st_gid:
        try:
            os.fchown(descriptor, folder.st_uid if os.geteuid() == 0 else -1, folder.st_gid)
        except PermissionError:  # this account is not in the folder's group, so that the file has another one
            writers &= 0o002
    os.fchmod(descriptor, 0o600 | writers | writers << 1)


def _flock(descriptor: int, path: str) -> None:
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
