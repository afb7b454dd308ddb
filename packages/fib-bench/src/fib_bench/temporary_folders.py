"""Temporary folders of runs. Removed when the run ends, and by a later run if it was killed.

A folder is held by an ``flock`` on itself, which the system releases when the process that made it has ended, however
that happened. `remove_abandoned` removes the folders of this user that no process holds. Other users can neither
open a folder, so they cannot hold it, nor make one that looks like this user's.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_PREFIX = "fib-bench-run-"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TemporaryFolder:
    """A new folder that only this user can open; a context manager that removes it."""

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
        remove_folder(self.path)
        os.close(self._descriptor)
        self._descriptor = -1


def remove_abandoned(uids: Collection[int] = ()) -> None:
    """Remove the folders of killed runs: those of this user, and of others that are its workers."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                _remove_if_abandoned(Path(entry.path), uids)


def remove_folder(path: Path) -> None:
    """Remove a folder with everything in it, whatever its depth and modes; a link is not followed.

    `shutil.rmtree` fails at a depth of a thousand, and in folders that their owner closed: the system's tools do not.
    """
    if path.is_symlink():
        return
    with suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            subprocess.run([*command, "--", str(path)], check=False, stderr=subprocess.DEVNULL)


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
            remove_folder(path)
    except OSError:
        return  # a run holds it, or the file system has no locks
    finally:
        os.close(descriptor)
