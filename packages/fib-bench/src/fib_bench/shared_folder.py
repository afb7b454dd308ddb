"""Shared folders: created, checked and opened by descriptor, so that planted links are never followed."""

from __future__ import annotations

import errno
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

from .errors import UnsafeFolder


def open_folder(path: Path, mode: int) -> int:
    """Open a folder, made if it is not there, whose entries other users cannot replace.

    A folder of this user gets the mode. One of another user is accepted only if it is sticky and this
    user may write to it; with a mode that excludes others, only the user's own folder is accepted.

    Args:
        path: The folder. Its last component must not be a link.
        mode: The permission bits: ``0o1777`` to share it with all users, ``0o700`` to keep it private.

    Returns:
        A descriptor of the folder, which the caller closes.

    Raises:
        UnsafeFolder: The path is a link or no folder, or belongs to another user who could replace its entries.
        OSError: The folder cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(0o700)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise UnsafeFolder(str(path), _owner(path.lstat()), "it is a link or no folder") from error
        if error.errno == errno.EACCES:
            raise UnsafeFolder(str(path), _owner(path.lstat()), "other users cannot open it") from error
        raise
    try:
        _check(path, os.fstat(descriptor), descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(path: Path, found: os.stat_result, descriptor: int, mode: int) -> None:
    if found.st_uid == os.geteuid():
        if stat.S_IMODE(found.st_mode) != mode:
            os.fchmod(descriptor, mode)
        return
    if not mode & stat.S_IWOTH:
        raise UnsafeFolder(str(path), _owner(found), "it belongs to another user")
    if not found.st_mode & stat.S_ISVTX:
        raise UnsafeFolder(str(path), _owner(found), "it belongs to another user and is not sticky")
    if not found.st_mode & stat.S_IWOTH:
        raise UnsafeFolder(str(path), _owner(found), "other users cannot write to it")


def _owner(found: os.stat_result) -> str:
    return user_name(found.st_uid)


def user_name(uid: int) -> str:
    """A user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
