"""Durable appends to files of lines, safe against other writers and being killed.

An appender holds an exclusive lock on the data file itself (released by the system when the process
dies), ends a line that somebody else left torn, writes its lines with one call, and syncs the data
before it returns. If anything fails, every file of the batch is cut back to its former size. Who rewrites a file holds
the lock too; who has waited for it meanwhile finds that the file is another one, and opens that.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from .files import atomic_write, make_folders, sync_data, sync_folders, write_all


def append_lines(batch: Mapping[str, Sequence[bytes]]) -> None:
    """Append lines (without their newlines, at least one to a file): all or, after an error, none.

    A process that is killed in between may leave lines of a batch that it never acknowledged.

    Raises:
        OSError: Nothing was appended.
    """
    files: list[tuple[int, int]] = []
    try:
        for path in sorted(batch):
            descriptor = _locked(path)
            files.append((descriptor, os.fstat(descriptor).st_size))
        for (descriptor, size), path in zip(files, sorted(batch), strict=True):
            write_all(descriptor, _separator(descriptor, size) + b"\n".join(batch[path]) + b"\n")
        for descriptor, _ in files:
            sync_data(descriptor)
    except BaseException:
        for descriptor, size in files:
            os.ftruncate(descriptor, size)
        raise
    finally:
        for descriptor, _ in files:
            _unlock(descriptor)


def append_new_lines(path: str, choose: Callable[[int], Sequence[bytes]]) -> Sequence[bytes]:
    """Append those lines that are chosen under the lock: what is in the file by then may decide.

    Args:
        path: The file.
        choose: Given the locked file's descriptor, returns the lines, without their newlines.

    Returns:
        What was chosen; it is on the disk.

    Raises:
        OSError: Nothing was appended.
    """
    descriptor = _locked(path)
    try:
        size = os.fstat(descriptor).st_size
        lines = choose(descriptor)
        if not lines:
            return lines
        try:
            write_all(descriptor, _separator(descriptor, size) + b"\n".join(lines) + b"\n")
            sync_data(descriptor)
        except BaseException:
            os.ftruncate(descriptor, size)
            raise
        return lines
    finally:
        _unlock(descriptor)


def rewrite_file(path: str, make: Callable[[bytes], bytes]) -> bool:
    """Replace what a file holds, under the lock that appenders take: what they have written is seen, nothing is lost.

    Readers see the old content or the new, never a part. Who waits for the lock appends to the new file.

    Args:
        path: The file; a link is followed.
        make: Given the content, returns the new one.

    Returns:
        Whether anything changed; it is on the disk then.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: It could not be written; the old content is there still.
    """
    target = os.path.realpath(path, strict=True)
    descriptor = _locked(target)
    try:
        old = Path(target).read_bytes()
        new = make(old)
        if new != old:
            atomic_write(target, new, durable=True, mode=stat.S_IMODE(os.fstat(descriptor).st_mode))
        return new != old
    finally:
        _unlock(descriptor)


def remove_files(path: str, choose: Callable[[int], Iterable[str]]) -> list[str]:
    """Remove files that are chosen under the lock on another: what names them cannot change meanwhile.

    Args:
        path: The file that is locked, if there is one.
        choose: Given its descriptor, or -1, returns what to remove.

    Returns:
        What was removed.

    Raises:
        OSError: One could not be removed; others may have been.
    """
    descriptor = _locked(path) if os.path.exists(path) else -1
    try:
        removed = [name for name in choose(descriptor) if os.path.lexists(name)]
        for name in removed:
            os.unlink(name)
        sync_folders({Path(name).parent for name in removed})
        return removed
    finally:
        if descriptor >= 0:
            _unlock(descriptor)


def _locked(path: str) -> int:
    """Open a file for appending, made durable if it is new, under an exclusive lock."""
    while True:
        descriptor = _opened(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_still(descriptor: int, path: str) -> bool:
    """Whether a path leads to an open file; not if somebody has rewritten it while we waited for the lock."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _opened(path: str) -> int:
    """Open a file for appending, made durable if it is new."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        folders = make_folders(Path(path).parent)
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
        sync_folders(folders)
    return descriptor


def _unlock(descriptor: int) -> None:
    """Unlock and close: a process that was forked meanwhile has the descriptor too, and would keep the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _separator(descriptor: int, size: int) -> bytes:
    """A newline if the file ends in a torn line, so that ours does not glue itself to it."""
    return b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""
