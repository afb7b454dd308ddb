"""Temporary folders of runs. Removed when the run ends, and by a later run if it was killed.

A folder is held by an ``flock`` on itself, which the system releases when the process that made it has ended, however
that happened. `remove_abandoned` removes the folders of this user that no process holds. Other users can neither
open a folder, so they cannot hold it, nor make one that looks like this user's.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_PREFIX = "fib-bench-run-"
_MAX_LEVELS = 100_000
"""Limit of nested folders; a process that still makes files must not keep this one busy for ever."""
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TemporaryFolder:
    """A new folder that only this user can open; a context manager that removes it.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self) -> None:
        while (made := _make()) is None:
            pass  # another run has taken it for an abandoned one before it was held
        self.path, self._descriptor = made

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove it with everything in it; files that the system does not let go stay."""
        if self._descriptor < 0:
            return
        _remove(self.path, self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1


def remove_abandoned(uids: Collection[int] = ()) -> None:
    """Remove the folders of killed runs.

    Args:
        uids: Users besides this one whose folders are this user's: those of its workers.
    """
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                _remove_if_abandoned(Path(entry.path), uids)


def remove_folder(path: Path) -> None:
    """Remove a folder with everything in it, whatever its depth and modes; a link is not followed."""
    with suppress(OSError):
        descriptor = os.open(path, _OPEN)
        try:
            _remove(path, descriptor)
        finally:
            os.close(descriptor)


def _make() -> tuple[Path, int] | None:
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    descriptor = -1
    with suppress(FileNotFoundError):
        descriptor = os.open(path, _OPEN)
        if _hold(descriptor) and _is_at(path, descriptor):
            return path, descriptor
    if descriptor >= 0:
        os.close(descriptor)
    return None


def _hold(descriptor: int) -> bool:
    """Whether the folder is now held; a file system without locks holds nothing, and nothing there is abandoned."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _remove_if_abandoned(path: Path, uids: Collection[int]) -> None:
    try:
        descriptor = os.open(path, _OPEN)
    except OSError:
        return  # a link, a file, or a folder of another user
    try:
        owner = os.fstat(descriptor).st_uid
        if owner != os.geteuid() and owner not in uids:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, descriptor):
            _remove(path, descriptor)
    except OSError:
        return  # a run holds it, or the file system has no locks
    finally:
        os.close(descriptor)


# -- removal -------------------------------------------------------------------------------------


def _remove(path: Path, descriptor: int) -> None:
    """Remove a folder that is open; only what is below the descriptor, wherever the path leads by now."""
    with suppress(OSError):
        for _ in range(_MAX_LEVELS):
            if not (names := os.listdir(descriptor)):
                break
            for name in names:
                _remove_entry(name, descriptor)
        path.rmdir()


def _remove_entry(name: str, folder: int) -> None:
    """Remove one level: folders inside are moved up to the folder, so that neither depth nor open files are limits.

    `shutil.rmtree` fails with a RecursionError at a depth of a thousand (Python 3.11 and 3.12), and where a folder may
    not be read.
    """
    with suppress(FileNotFoundError):
        if not _is_unlinked(name, folder):
            inner = _open_inside(name, folder)
            try:
                for child in os.listdir(inner):  # noqa: PTH208 - a descriptor
                    if not _is_unlinked(child, inner):
                        os.close(_open_inside(child, inner))  # it can be moved only if it may be written to
                        os.rename(child, os.urandom(16).hex(), src_dir_fd=inner, dst_dir_fd=folder)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=folder)


def _is_unlinked(name: str, folder: int) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    return True


def _open_inside(name: str, folder: int) -> int:
    """Open a folder that its owner may have closed for itself."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        Path(f"/proc/self/fd/{handle}").chmod(0o700)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
    finally:
        os.close(handle)
