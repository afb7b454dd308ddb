"""Durable appends to files of lines, safe against other writers and against being killed.

On POSIX systems an appender holds an exclusive `flock` on the data file itself: the system releases
it when the process dies, and no lock files appear in data sets. Elsewhere (Windows) a lock file of
`filelock` stands beside the data file, because an open file cannot be replaced there.

An appender ends a line that another writer left torn, writes its lines with one call, and syncs them
before it returns. If anything fails, every file of the batch is cut back to its former size.
Rewriting takes the same lock; a waiting writer checks the inode and reopens a replaced file.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from .files import BINARY, atomic_write, make_folders, naming, sync_data, sync_folders, write_all

try:
    from fcntl import LOCK_EX, LOCK_UN, flock

    _HAS_FLOCK = True
except ImportError:  # Windows
    _HAS_FLOCK = False


def append_lines(batch: Mapping[str, Sequence[bytes]]) -> None:
    """Append lines (without their newlines, at least one to a file): all or, after an error, none.

    A process that is killed meanwhile may leave lines of a batch that it never acknowledged.

    Raises:
        OSError: Nothing was appended.
    """
    with contextlib.ExitStack() as stack:
        files = [(stack.enter_context(_locked(path)), batch[path]) for path in sorted(batch)]
        sizes = [os.fstat(descriptor).st_size for descriptor, _ in files]
        try:
            for path, (descriptor, lines), size in zip(sorted(batch), files, sizes, strict=True):
                with naming(path):
                    write_all(descriptor, _separator(descriptor, size) + b"\n".join(lines) + b"\n")
            for path, (descriptor, _) in zip(sorted(batch), files, strict=True):
                with naming(path):
                    sync_data(descriptor)
        except BaseException:
            for (descriptor, _), size in zip(files, sizes, strict=True):
                os.ftruncate(descriptor, size)
            raise


def append_new_lines(path: str, choose: Callable[[int], Sequence[bytes]]) -> Sequence[bytes]:
    """Append lines that are chosen under the lock, depending on what the file holds by then.

    Args:
        path: The file.
        choose: Given the locked file's descriptor, returns the lines, without their newlines.

    Returns:
        The chosen lines; they are durable.

    Raises:
        OSError: Nothing was appended.
    """
    with _locked(path) as descriptor:
        size = os.fstat(descriptor).st_size
        lines = choose(descriptor)
        if not lines:
            return lines
        try:
            with naming(path):
                write_all(descriptor, _separator(descriptor, size) + b"\n".join(lines) + b"\n")
                sync_data(descriptor)
        except BaseException:
            os.ftruncate(descriptor, size)
            raise
        return lines


def rewrite_file(path: str, make: Callable[[bytes], bytes]) -> bool:
    """Replace the content of a file under the lock that appenders take, so that no appended line is lost.

    Readers see the old content or the new, never a part. A waiting appender appends to the new file.

    Args:
        path: The file; a link is followed.
        make: Given the content, returns the new one.

    Returns:
        Whether anything changed; the change is durable.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: It could not be written and is unchanged.
    """
    target = os.path.realpath(path, strict=True)
    with _locked(target, replaces=True):
        old = Path(target).read_bytes()
        new = make(old)
        if new != old:
            atomic_write(target, new, durable=True, mode=stat.S_IMODE(os.stat(target).st_mode))
        return new != old


def remove_files(path: str, choose: Callable[[int], Iterable[str]]) -> list[str]:
    """Remove files that are chosen under the lock on another file, which names those that stay.

    Args:
        path: The file that is locked, if it exists.
        choose: Given its descriptor, or -1, returns the files to remove.

    Returns:
        The removed files.

    Raises:
        OSError: One could not be removed; others may have been.
    """
    with _locked(path) if os.path.exists(path) else contextlib.nullcontext(-1) as descriptor:
        removed = [name for name in choose(descriptor) if os.path.lexists(name)]
        for name in removed:
            os.unlink(name)
        sync_folders({Path(name).parent for name in removed})
        return removed


@contextlib.contextmanager
def _locked(path: str, *, replaces: bool = False) -> Iterator[int]:
    """Open a file for appending under an exclusive lock; a new file is durable.

    Args:
        path: The file.
        replaces: Whether the block replaces the file. Where an open file cannot be replaced, it is not
            opened, and the descriptor is -1.
    """
    if not _HAS_FLOCK:
        import filelock

        make_folders(Path(path).parent)
        with filelock.FileLock(Path(path).with_name(f".{Path(path).name}.lock")):
            descriptor = -1 if replaces else _opened(path)
            try:
                yield descriptor
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
        return
    descriptor = _flocked(path)
    try:
        yield descriptor
    finally:
        try:  # a process that was forked meanwhile has the descriptor too and would keep the lock
            flock(descriptor, LOCK_UN)
        finally:
            os.close(descriptor)


def _flocked(path: str) -> int:
    """Open a file and lock it; again if another process has replaced it while this one waited for the lock."""
    while True:
        descriptor = _opened(path)
        try:
            flock(descriptor, LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _opened(path: str) -> int:
    flags = os.O_RDWR | os.O_APPEND | BINARY
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        folders = make_folders(Path(path).parent)
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
        sync_folders(folders)
        return descriptor


def _separator(descriptor: int, size: int) -> bytes:
    """A newline if the file ends in a torn line, so that the next line does not continue it."""
    if not size:
        return b""
    os.lseek(descriptor, size - 1, os.SEEK_SET)
    return b"" if os.read(descriptor, 1) == b"\n" else b"\n"
