"""Reading of regular files, for all packages: without waiting, and up to a bound.

A data set may hold anything: opening a named pipe waits for a writer, a device never ends, and a file may be larger
than memory. Readers of files that others have made open them here.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

from .files import BINARY

_FLAGS = os.O_RDONLY | BINARY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | os.PathLike[str], buffer_bytes: int = -1) -> BinaryIO:
    """Open a regular file for reading, without waiting.

    Args:
        path: The file; a link is followed.
        buffer_bytes: As the buffering of `open`: 0 for none, -1 for the default.

    Raises:
        OSError: There is no such file, it cannot be read, or it is of another kind; `strerror` says why.
    """
    _check_kind(path, os.stat(path))  # opening a device may change it
    descriptor = os.open(path, _FLAGS)
    try:
        _check_kind(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb", buffering=buffer_bytes)
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | os.PathLike[str], limit_bytes: int) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: As `open_regular`, or the file is larger than `limit_bytes`.
    """
    with open_regular(path, buffer_bytes=0) as file:
        size = os.fstat(file.fileno()).st_size
        data = b"" if size > limit_bytes else file.read(limit_bytes + 1)
    if max(size, len(data)) > limit_bytes:
        problem = f"it has {max(size, len(data))} bytes, and at most {limit_bytes} are read"
        raise OSError(errno.EFBIG, problem, os.fspath(path))
    return data


def _check_kind(path: str | os.PathLike[str], status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        problem = f"it is {_KINDS.get(kind, 'something else')}, not a regular file"
        raise OSError(errno.EINVAL, problem, os.fspath(path))
