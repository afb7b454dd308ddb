"""Durable appends to files of lines, safe against other writers and against being killed.

A writer holds an exclusive lock (`locks`) on each data file, ends a line that another writer left torn, writes its
lines, and syncs them before it returns. If anything fails, every file is cut back to its former size, and files that
were made are removed. Rewriting takes the same lock; a waiting writer checks the inode and reopens a replaced file.

Files are locked in the order of their inodes, so that writers that know the same files by different names (hard
links, linked folders) cannot wait for each other in a circle, and a file with two names is locked once.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import attrs

from .files import BINARY, atomic_write, make_folders, named_error, sync_data, sync_folders, write_all
from .locks import HAS_FLOCK, lock_name, lock_open_file

T = TypeVar("T")

MAX_FILES_AT_ONCE = 64
"""How many files a batch has open and locked at once; processes may have 1,024 descriptors, also for other things."""
_MAX_ATTEMPTS = 1000
_FLAGS = os.O_RDWR | os.O_APPEND | BINARY


def append_in_groups(batch: Mapping[str, Sequence[bytes]]) -> Iterator[Sequence[str]]:
    """Append lines to files, in groups of `MAX_FILES_AT_ONCE` files: all lines of a group or, after an error, none.

    Groups are smaller where the process has no more descriptors. A process that is killed may leave lines that it
    never acknowledged, the last of a file torn, and one empty file.

    Args:
        batch: The lines of each file, without their newlines, at least one to a file.

    Yields:
        The files of a group, whose lines are durable.

    Raises:
        OSError: The current group and those that follow were not appended.
    """
    paths = list(batch)
    done, size = 0, MAX_FILES_AT_ONCE
    while done < len(paths):
        group = paths[done : done + size]
        try:
            _attempt(partial(_append_all, {path: batch[path] for path in group}))
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE} or len(group) == 1:
                raise
            size = len(group) // 2
        else:
            done += len(group)
            yield group


def _append_all(batch: Mapping[str, Sequence[bytes]], files: _LockedFiles) -> None:
    """Append lines durably; a new file is made right before it is written."""
    opened = files.open_all(list(batch))
    for path, file in opened.items():
        file.append(batch[path])
    for path, lines in batch.items():
        if path not in opened:
            files.create(path).append(lines)
    files.sync()


def append_new_lines(path: str, choose: Callable[[int], Sequence[bytes]]) -> Sequence[bytes]:
    """Append lines that are chosen under the lock, depending on what the file holds by then.

    Args:
        path: The file.
        choose: Given the locked file's descriptor, returns the lines, without their newlines. It is called once for
            each attempt.

    Returns:
        The chosen lines; they are durable.

    Raises:
        OSError: Nothing was appended.
    """

    def append(files: _LockedFiles) -> Sequence[bytes]:
        file = files.open_all([path]).get(path) or files.create(path)
        lines = choose(file.descriptor)
        if lines:
            file.append(lines)
            files.sync()
        return lines

    return _attempt(append)


def rewrite_file(path: str, make: Callable[[bytes], bytes]) -> bool:
    """Replace the content of a file under the lock that appenders take, so that no appended line is lost.

    Readers see the old content or the new, never a part. A waiting appender appends to the new file. Other hard links
    of the file keep the old content.

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

    def rewrite(files: _LockedFiles) -> bool:
        if HAS_FLOCK:
            if not files.open_all([target]):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), target)
        else:  # an open file cannot be replaced there
            files.lock_names([target])
        old = Path(target).read_bytes()
        new = make(old)
        if new != old:
            atomic_write(target, new, durable=True, mode=stat.S_IMODE(os.stat(target).st_mode))
        return new != old

    return _attempt(rewrite)


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

    def remove(files: _LockedFiles) -> list[str]:
        file = files.open_all([path]).get(path)
        removed = [name for name in choose(-1 if file is None else file.descriptor) if os.path.lexists(name)]
        for name in removed:
            os.unlink(name)
        sync_folders({Path(name).parent for name in removed})
        return removed

    return _attempt(remove)


class _Replaced(Exception):
    """Another process has replaced or made a file meanwhile."""


def _attempt(action: Callable[[_LockedFiles], T]) -> T:
    """Call an action with a set of locked files; again, with a new set, if it meets a file that was replaced."""
    path = ""
    for _ in range(_MAX_ATTEMPTS):
        try:
            with _LockedFiles() as files:
                return action(files)
        except _Replaced as replaced:
            path = str(replaced)
    raise OSError(errno.EAGAIN, f"was replaced {_MAX_ATTEMPTS} times while this process waited for its lock", path)


@attrs.define(eq=False)
class _File:
    """A data file that is open under its lock."""

    path: str
    descriptor: int
    unlock: Callable[[], object] | None = None
    former_bytes: int = 0
    """Its size when it was locked."""
    is_made: bool = False
    """Whether this process has made it and nobody else has written to it."""
    is_written: bool = False

    def check(self) -> os.stat_result:
        """The status of the locked file.

        Raises:
            _Replaced: It is not the file of its path any more.
            OSError: It is no regular file.
        """
        status = os.fstat(self.descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file; lines cannot be appended to it", self.path)
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            raise _Replaced(self.path) from None
        if found.st_ino != status.st_ino or found.st_dev != status.st_dev:
            raise _Replaced(self.path)
        return status

    def append(self, lines: Sequence[bytes]) -> None:
        """Write lines at the end."""
        ending = b"" if self.is_written else self._separator()
        self.is_written = True
        try:
            write_all(self.descriptor, ending + b"\n".join(lines) + b"\n")
        except OSError as error:
            raise named_error(error, self.path) from error

    def sync(self) -> None:
        """Make written lines durable."""
        if self.is_written:
            try:
                sync_data(self.descriptor)
            except OSError as error:
                raise named_error(error, self.path) from error

    def _separator(self) -> bytes:
        """A newline if the file ends in a torn line, so that the next line does not continue it."""
        if not self.former_bytes:
            return b""
        os.lseek(self.descriptor, self.former_bytes - 1, os.SEEK_SET)
        return b"" if os.read(self.descriptor, 1) == b"\n" else b"\n"

    def undo(self) -> None:
        """Cut the file back to its former size."""
        if self.is_written:
            self.is_written = False
            with suppress(OSError):  # must not hide the error that led here
                os.ftruncate(self.descriptor, self.former_bytes)

    def close(self) -> None:
        """Release the lock; a file that was made and not written is removed."""
        is_unused = self.is_made and not self.is_written
        try:
            if is_unused and HAS_FLOCK:
                _remove(self.path)
            if self.unlock is not None:
                self.unlock()  # a process that was forked meanwhile has the descriptor too and would keep the lock
        finally:
            os.close(self.descriptor)
        if is_unused and not HAS_FLOCK:  # an open file cannot be removed there; its name is locked still
            _remove(self.path)


def _call_all(actions: list[Callable[[], object]]) -> None:
    """Call functions, the last one first, each also if another one fails; `ExitStack` takes 2 us."""
    while actions:
        try:
            actions.pop()()
        except BaseException:
            _call_all(actions)
            raise


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


class _LockedFiles:
    """Data files that are open and locked; as a context, it cuts them back after an error and releases them."""

    def __init__(self) -> None:
        self._files: list[_File] = []
        self._folders: set[Path] = set()
        self._unlock_names: list[Callable[[], object]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            for file in self._files:
                file.undo()
        _call_all([*self._unlock_names, *(file.close for file in self._files)])

    def open_all(self, paths: Sequence[str]) -> dict[str, _File]:
        """Open and lock the files that exist; two names of one file give one file."""
        if not HAS_FLOCK:
            self.lock_names(paths)
        files = {path: file for path in paths if (file := self._open(path)) is not None}
        if len(files) > 1:
            files = self._deduplicated(files)
        for file in self._files:
            self._lock(file)
        return files

    def lock_names(self, paths: Iterable[str]) -> None:
        """Lock files, which need not exist, by lock files alone, without opening them."""
        for path in sorted({os.path.realpath(path) for path in paths}):
            make_folders(Path(path).parent)
            unlock = lock_name(path)
            if unlock is not None:
                self._unlock_names.append(unlock)

    def create(self, path: str) -> _File:
        """Make, open and lock a file; its folders are made too.

        Raises:
            _Replaced: Another process has made it meanwhile.
        """
        target = os.path.realpath(path)  # of a link to nothing too, which O_EXCL refuses
        self._folders.update(make_folders(Path(target).parent))
        try:
            descriptor = os.open(target, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            if (known := self._known(target)) is not None:
                return known
            raise _Replaced(path) from None
        file = _File(target, descriptor)
        self._files.append(file)
        file.is_made = True
        if HAS_FLOCK:
            file.unlock = lock_open_file(descriptor, target, waits=False)  # waiting out of order could be for ever
            if file.unlock is None:
                file.is_made = False
                raise _Replaced(path)
        file.former_bytes = file.check().st_size
        file.is_made = not file.former_bytes
        return file

    def sync(self) -> None:
        """Make lines and new names durable."""
        for file in self._files:
            file.sync()
        sync_folders(self._folders)

    def _open(self, path: str) -> _File | None:
        try:
            descriptor = os.open(path, _FLAGS)
        except FileNotFoundError:
            return None
        file = _File(path, descriptor)
        self._files.append(file)
        return file

    def _deduplicated(self, files: Mapping[str, _File]) -> dict[str, _File]:
        """Close the second descriptors of files with two names, and put files into the order of their inodes."""
        kept: dict[tuple[int, int], _File] = {}
        found: dict[str, _File] = {}
        for path, file in files.items():
            status = os.fstat(file.descriptor)
            found[path] = kept.setdefault((status.st_dev, status.st_ino), file)
            if found[path] is not file:
                self._files.remove(file)
                file.close()
        self._files = [kept[identity] for identity in sorted(kept)]
        return found

    def _lock(self, file: _File) -> None:
        if HAS_FLOCK:
            file.unlock = lock_open_file(file.descriptor, file.path)
        file.former_bytes = file.check().st_size

    def _known(self, path: str) -> _File | None:
        """The file of this set that a path names too."""
        with suppress(FileNotFoundError):
            status = os.stat(path)
            return next((file for file in self._files if os.path.samestat(os.fstat(file.descriptor), status)), None)
        return None
