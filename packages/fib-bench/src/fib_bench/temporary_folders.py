"""Temporary folders of runs. Removed when the run ends, and by a later run if it was killed.

A folder is held by an ``flock`` on itself, which the system releases when the process that made it has ended, however
that happened. `remove_abandoned` removes the folders of this user that no process holds. Other users can neither
open a folder, so they cannot hold it, nor make one that looks like this user's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from fib_schema import get_fib_cache_path

from .errors import WorkerPoolFailed

_PREFIX = "fib-bench-run-"
_SCARCE_BYTES, _LITTLE_BYTES = 1 << 20, 1 << 30
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TemporaryFolder:
    """A new folder that only this user can open; a context manager that removes it."""

    def __init__(self) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            if (held := _hold(self.path)) is not None:
                self._descriptor = held
                return  # else another run has taken it for an abandoned one before it was held

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # a link, a file, a folder of another user, or one on a file system without locks
            if (descriptor := _hold(path)) is not None:
                if os.fstat(descriptor).st_uid in {os.geteuid(), *uids}:
                    remove_folder(path)
                os.close(descriptor)


def raise_if_disk_full(failure: str) -> None:
    """Raise `WorkerPoolFailed` where a worker's failure may be that of a full disk, and is no verdict.

    That is where workers can write no more, or little and the failure says so, which a solution may invent: what a
    program could not write as a whole, it may have removed since.
    """
    least = _LITTLE_BYTES if os.strerror(errno.ENOSPC) in failure else _SCARCE_BYTES
    for folder in (Path(tempfile.gettempdir()), get_fib_cache_path()):
        if folder.is_dir() and (free := shutil.disk_usage(folder).free) < least:
            raise WorkerPoolFailed(f"the disk of {folder} is full, {free >> 10} KiB are free; make space on it")


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


def _hold(path: Path) -> int | None:
    """A descriptor that holds a folder; None if another process holds it or has removed it."""
    with suppress(BlockingIOError, FileNotFoundError), ExitStack() as stack:
        descriptor = os.open(path, _OPEN)
        stack.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            stack.pop_all()
            return descriptor
    return None
