"""Durable appends to files of lines, safe against other writers and against being killed.

A writer locks the folders of its files, ends a line that another writer left torn, writes its lines, and
syncs them before it returns. If anything fails, every file is cut back to its former size, and files that were made
are removed. Rewriting takes the same locks. A link to a file is followed, so that all its writers lock one folder; hard
links of one file in several folders are not protected from each other.

An account that may only read a file can still hold its `flock`. So no data file is locked, but a hidden file ``.lock``
in its folder, which only accounts that may write to the folder can open. It is made by the first writer and stays. The
system releases the lock when its process dies. A mount that refuses `flock` cannot be written to.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs

from .files import atomic_write, make_folders, named_error, sync_data, sync_folders, write_all

MAX_FILES_AT_ONCE = 64
"""Number of files that a batch has open at once; processes may have 1,024 descriptors, also for other things."""
LOCK_NAME = ".lock"
"""The file in a folder whose lock writers of the folder's files hold."""
LOCK_TIMEOUT_SECONDS = 60.0
"""A writer holds its lock for one write and one sync; longer means that it is gone."""
_FIRST_PAUSE_SECONDS, _POLL_SECONDS = 0.0005, 0.01  # a writer holds its lock for about 0.3 ms
_MAKING_SECONDS = 1.0
"""For so long, another account may have made a lock file without having given it its permissions."""
_FLAGS = os.O_RDWR | os.O_APPEND


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
            with _LockedFiles(group) as files:
                files.append({path: batch[path] for path in group})
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE} or len(group) == 1:
                raise
            size = len(group) // 2
        else:
            done += len(group)
            yield group


def append_new_lines(path: str, choose: Callable[[int], Sequence[bytes]]) -> Sequence[bytes]:
    """Append lines that are chosen under the lock, depending on what the file holds by then.

    Args:
        path: The file.
        choose: Given the file's descriptor, returns the lines, without their newlines.

    Returns:
        The chosen lines; they are durable.

    Raises:
        OSError: Nothing was appended.
    """
    with _LockedFiles([path]) as files:
        lines = choose((files.open(path) or files.create(path)).descriptor)
        if lines:
            files.append({path: lines})
        return lines


def rewrite_file(path: str, make: Callable[[bytes], bytes]) -> bool:
    """Replace the content of a file under the lock that appenders take, so that no appended line is lost.

    Readers see the old content or the new, never a part. Other hard links of the file keep the old content.

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
    with _LockedFiles([target]):
        old = Path(target).read_bytes()
        new = make(old)
        if new != old:
            atomic_write(target, new, durable=True, mode=stat.S_IMODE(os.stat(target).st_mode))
        return new != old


def remove_files(path: str, choose: Callable[[int], Iterable[str]]) -> list[str]:
    """Remove files that are chosen under the lock of another file, which names those that stay.

    Args:
        path: The other file, which need not exist.
        choose: Given its descriptor, or -1, returns the files to remove.

    Returns:
        The removed files.

    Raises:
        OSError: One could not be removed; others may have been.
    """
    with _LockedFiles([path]) as files:
        file = files.open(path)
        removed = [name for name in choose(-1 if file is None else file.descriptor) if os.path.lexists(name)]
        for name in removed:
            os.unlink(name)
        sync_folders({Path(name).parent for name in removed})
        return removed


@attrs.define(eq=False)
class _File:
    """A data file that is open, its folder locked."""

    path: str
    descriptor: int
    former_bytes: int = 0
    """Its size when it was opened."""
    is_made: bool = False
    """Whether this process has made it."""
    is_written: bool = False

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
        last = os.pread(self.descriptor, 1, self.former_bytes - 1)
        return b"" if last == b"\n" else b"\n"

    def undo(self) -> None:
        """Cut the file back to its former size."""
        if self.is_written:
            self.is_written = False
            with suppress(OSError):  # must not hide the error that led here
                os.ftruncate(self.descriptor, self.former_bytes)

    def close(self) -> None:
        """Close the file; one that was made and not written is removed."""
        os.close(self.descriptor)
        if self.is_made and not self.is_written:
            with suppress(OSError):
                os.unlink(self.path)


class _LockedFiles:
    """Data files whose folders are locked; as a context, it cuts them back after an error and releases the locks."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._targets = {path: os.path.realpath(path) if os.path.islink(path) else path for path in paths}
        self._files: dict[tuple[int, int], _File] = {}
        self._folders: set[Path] = set()
        """Folders with new names."""

    def __enter__(self) -> Self:
        targets = self._targets.values()
        try:
            self._unlock = lock_folders_of(targets)
        except FileNotFoundError:
            for target in targets:
                self._folders.update(make_folders(Path(target).parent))
            self._unlock = lock_folders_of(targets)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            for file in self._files.values():
                file.undo()
        call_all([self._unlock, *(file.close for file in self._files.values())])

    def append(self, batch: Mapping[str, Sequence[bytes]]) -> None:
        """Append lines durably; a new file is made right before it is written."""
        opened = {path: self.open(path) for path in batch}
        for path, file in opened.items():
            if file is not None:
                file.append(batch[path])
        for path, file in opened.items():
            if file is None:
                (self.open(path) or self.create(path)).append(batch[path])
        for file in self._files.values():
            file.sync()
        if self._folders:
            sync_folders(self._folders)

    def open(self, path: str) -> _File | None:
        """Open a file if it exists; two names of one file give one file.

        Raises:
            OSError: It is not a regular file, or this account may not write to it.
        """
        try:
            return self._add(path, os.open(self._targets[path], _FLAGS))
        except FileNotFoundError:
            return None

    def create(self, path: str) -> _File:
        """Make a file that does not exist."""
        target = self._targets[path]
        descriptor = os.open(target, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            file = self._add(path, descriptor)
        except OSError:
            os.unlink(target)
            raise
        file.is_made = True
        self._folders.add(Path(target).parent)
        return file

    def _add(self, path: str, descriptor: int) -> _File:
        is_kept = False
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "is not a regular file; lines cannot be appended to it", path)
            file = _File(self._targets[path], descriptor, status.st_size)
            known = self._files.setdefault((status.st_dev, status.st_ino), file)
            is_kept = known is file
        finally:
            if not is_kept:
                os.close(descriptor)
        return known


# -- locks -------------------------------------------------------------------------------------------


def lock_folders_of(paths: Iterable[str], name: str = LOCK_NAME) -> Callable[[], None]:
    """Lock the folders of some files exclusively.

    Folders are locked in one order for all processes, so that two of them cannot wait for each other; a folder of two
    names is locked once. A process that is forked later shares the locks until they are released.

    Args:
        paths: The files, which need not exist, in folders that do; a link among them stands for itself.
        name: The lock file's name in each of them; locks of different names are independent.

    Returns:
        A function that releases all locks.

    Raises:
        TimeoutError: Another process does not release its lock.
        OSError: A lock file cannot be made or opened, for example because this account may not write to the folder.
    """
    releases: list[Callable[[], object]] = []
    try:
        _lock_files({path[: path.rfind("/") + 1] + name for path in paths}, releases)  # 4 us less than `dirname`
    except BaseException:
        call_all(releases)
        raise
    return partial(call_all, releases)


def call_all(actions: list[Callable[[], object]]) -> None:
    """Call functions, the last one first, each also if another one fails; `ExitStack` takes 2 us."""
    while actions:
        try:
            actions.pop()()
        except BaseException:
            call_all(actions)
            raise


def _lock_files(paths: Iterable[str], releases: list[Callable[[], object]]) -> None:
    opened: list[tuple[int, str]] = []
    for path in paths:
        descriptor = _open(path)
        releases.append(partial(os.close, descriptor))
        opened.append((descriptor, path))
    if len(opened) > 1:
        opened = _in_order(opened)
    for descriptor, path in opened:
        _flock(descriptor, path)
        releases.append(partial(flock, descriptor, LOCK_UN))


def _in_order(opened: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """The lock files in the order of their inodes, each once."""
    by_identity: dict[tuple[int, int], tuple[int, str]] = {}
    for descriptor, path in opened:
        status = os.fstat(descriptor)
        by_identity.setdefault((status.st_dev, status.st_ino), (descriptor, path))
    return [by_identity[identity] for identity in sorted(by_identity)]


def _open(path: str) -> int:
    """Open a lock file; make it if there is none."""
    flags = os.O_RDWR | os.O_NOFOLLOW
    while True:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            pass
        except PermissionError:
            if not _is_being_made(path):
                raise
            time.sleep(_POLL_SECONDS)
            continue
        with suppress(FileExistsError):
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                _give_to_writers(descriptor, os.stat(os.path.dirname(path) or "."))
            except BaseException:
                os.close(descriptor)
                raise
            return descriptor


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


def _is_being_made(path: str) -> bool:
    try:
        return abs(time.time() - os.lstat(path).st_ctime) < _MAKING_SECONDS
    except FileNotFoundError:
        return True


def _flock(descriptor: int, path: str) -> None:
    """Lock an open file.

    Raises:
        TimeoutError: Another process held it for `LOCK_TIMEOUT_SECONDS`.
    """
    pause, end = _FIRST_PAUSE_SECONDS, 0.0
    while True:
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            now = time.monotonic()
            end = end or now + LOCK_TIMEOUT_SECONDS
            if now >= end:
                text = f"has been locked for {LOCK_TIMEOUT_SECONDS:g} s by another process, which lslocks names; end it"
                raise TimeoutError(errno.ETIMEDOUT, text, path) from None
            time.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS)
        else:
            return
