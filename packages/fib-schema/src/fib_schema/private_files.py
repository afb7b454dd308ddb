"""Private folders of caches: no other user of the machine can read, replace or block what is in them.

A cache holds code that is executed. `private_folder` makes a folder with mode 0700. It is used only if it belongs to
this user or to root, if no other user may write to it, and if no other user can put another folder in its place. A
folder of this user that others may read was published by this user on purpose, and is accepted.

Members of a group that may write to a folder above the cache are trusted: many systems give each user a group of its
own. Systems without POSIX permissions check nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from .errors import FibError
from .files import BINARY

_ROOT = 0
_UNKNOWN = 65534
"""The owner that a user namespace shows for users outside of it."""
_HAS_OWNERS = hasattr(os, "geteuid")
_FLAGS = os.O_RDONLY | BINARY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class UnsafePath(FibError, PermissionError):
    """A file or folder of a cache that another user can change."""

    def __init__(self, code: int, problem: str, path: str) -> None:
        super().__init__(code, problem, path)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def private_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder for this user alone, with those above it, unless it exists.

    Args:
        path: The folder. Links above it are followed; it must not be one itself.

    Returns:
        The folder without links above it: use this path, because a link can change.

    Raises:
        UnsafePath: Another user can change what is in it.
        OSError: It cannot be made.
    """
    folder = _resolved(path)
    if not os.path.lexists(folder):
        _make_above(folder.parent)
        try:
            folder.mkdir(0o700)
        except FileExistsError:
            pass  # another process was faster
        else:
            folder.chmod(0o700)  # whatever the umask and the defaults of the folder above
    _check(folder)
    return folder


def find_private_folder(path: str | os.PathLike[str]) -> Path | None:
    """The folder that `private_folder` made earlier; None if there is none.

    Raises:
        UnsafePath: Another user can change what is in it.
    """
    folder = _resolved(path)
    if not os.path.lexists(folder):
        return None
    _check(folder)
    return folder


def read_private(path: str | os.PathLike[str]) -> bytes:
    """Read a regular file of this user or of root that no other user may write to.

    The folder that holds it is one of `private_folder`. Nothing is waited for: a pipe is refused.

    Raises:
        UnsafePath: It is not a regular file, or another user can change it.
        OSError: It cannot be read.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _unsafe(path, "is a link") from error
        raise
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _unsafe(path, "is not a regular file")
        _check_owner(path, found)
        return file.read()


def _resolved(path: str | os.PathLike[str]) -> Path:
    """The path with the links above it resolved."""
    absolute = Path(os.path.abspath(path))
    return Path(os.path.realpath(absolute.parent)) / absolute.name


def _make_above(folder: Path) -> None:
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(0o755, exist_ok=True)  # a umask of 0 would let others replace what is in it


def _check(folder: Path) -> None:
    if not _HAS_OWNERS:
        return
    found = os.lstat(folder)
    if stat.S_ISLNK(found.st_mode):
        raise _unsafe(folder, "is a link")
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    _check_owner(folder, found)
    for above in folder.parents:
        found = os.lstat(above)
        if not _is_trusted(found.st_uid) and not (found.st_uid == _UNKNOWN and _in_user_namespace()):
            raise _unsafe(folder, f"lies below {above}, which belongs to user {found.st_uid}")
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise _unsafe(folder, f"lies below {above}, where every user may replace folders")


def _check_owner(path: str | os.PathLike[str], found: os.stat_result) -> None:
    if not _HAS_OWNERS:
        return
    if not _is_trusted(found.st_uid):
        raise _unsafe(path, f"belongs to user {found.st_uid}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _unsafe(path, f"may be written by other users (mode {stat.S_IMODE(found.st_mode):04o})")


def _is_trusted(uid: int) -> bool:
    return uid in (os.geteuid(), _ROOT)


def _in_user_namespace() -> bool:
    """Whether owners outside of this process's namespace are shown as one unknown user."""
    try:
        return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]
    except OSError:
        return False


def _unsafe(path: str | os.PathLike[str], problem: str) -> UnsafePath:
    remedy = "delete it, or set FIB_CACHE_PATH to a folder of your own"
    return UnsafePath(errno.EPERM, f"{problem}; {remedy}", str(path))
