"""Durable writes: appended lines and whole files, safe against other writers and being killed.

An appender holds an exclusive lock on the data file itself (released by the system when the process
dies), ends a line that somebody else left torn, writes its lines with one call, and syncs the data
before it returns. If anything fails, every file of the batch is cut back to its former size. Who rewrites a file holds
the lock too; who has waited for it meanwhile finds that the file is another one, and opens that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path


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
            _write_all(descriptor, _separator(descriptor, size) + b"\n".join(batch[path]) + b"\n")
        for descriptor, _ in files:
            os.fdatasync(descriptor)
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
            _write_all(descriptor, _separator(descriptor, size) + b"\n".join(lines) + b"\n")
            os.fdatasync(descriptor)
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
            _publish(Path(target), new, os.replace, stat.S_IMODE(os.fstat(descriptor).st_mode))
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
        for folder in {os.path.dirname(name) for name in removed}:
            _sync_folder(Path(folder))
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
        made = _make_folders(Path(path).parent)
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
        for folder in made:
            _sync_folder(folder)
    return descriptor


def _unlock(descriptor: int) -> None:
    """Unlock and close: a process that was forked meanwhile has the descriptor too, and would keep the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder; returns it, those made above it and the one that was there: all have a new entry."""
    made = [folder]
    while not made[-1].is_dir():
        made.append(made[-1].parent)
    folder.mkdir(parents=True, exist_ok=True)
    return made


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _separator(descriptor: int, size: int) -> bytes:
    """A newline if the file ends in a torn line, so that ours does not glue itself to it."""
    return b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""


def _write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    while written < len(data):  # interrupted, or the disk is nearly full
        written += os.write(descriptor, memoryview(data)[written:])


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old content or the new, never a part.

    Raises:
        OSError: It could not be written; the old content is there still.
    """
    _publish(path, data, os.replace)


def create_file(path: Path, data: bytes) -> None:
    """Write a new file that is whole from the first moment.

    Raises:
        FileExistsError: There is such a file already.
        OSError: It could not be written.
    """
    _publish(path, data, os.link)


def create_files(contents: Mapping[str, bytes]) -> None:
    """Write new files, all of one folder or of several; what has its name already is left as it is.

    Each is whole from the moment that it has its name, and all are on the disk when this returns. They are written
    first and synced together, so that the file system commits them in one go.

    Raises:
        OSError: Some could not be written; those that have a name are whole.
    """
    if not contents:
        return
    folders = {folder for name in contents for folder in _make_folders(Path(name).parent)}
    waiting: dict[str, str] = {}
    try:
        for name, data in contents.items():
            if not os.path.exists(name):
                waiting[name] = os.path.join(os.path.dirname(name), f".{uuid.uuid4().hex}.tmp")
                _write_unsynced(waiting[name], data)
        for temporary in waiting.values():
            _sync_file(temporary)
        for name, temporary in waiting.items():
            with contextlib.suppress(FileExistsError):  # somebody else was faster
                os.link(temporary, name)
    finally:
        for temporary in waiting.values():
            Path(temporary).unlink(missing_ok=True)
    for folder in folders:
        _sync_folder(folder)


def _write_unsynced(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        _write_all(descriptor, data)
    finally:
        os.close(descriptor)


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _publish(path: Path, data: bytes, give_name: Callable[[Path, Path], None], mode: int | None = None) -> None:
    made = _make_folders(path.parent)
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            _write_all(descriptor, data)
            if mode is not None:
                os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        give_name(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    for folder in made:
        _sync_folder(folder)
