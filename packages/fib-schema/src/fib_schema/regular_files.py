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
    descriptor, _ = _opened(path)
    return os.fdopen(descriptor, "rb", buffering=buffer_bytes)


def read_regular(path: str | os.PathLike[str], limit_bytes: int) -> bytes:
    """The content of a regular file. It has no buffer, because opening a data set reads thousands of files.

    Raises:
        OSError: As `open_regular`, or the file is larger than `limit_bytes`.
    """
    descriptor, size = _opened(path)
    try:
        if size > limit_bytes:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and at most {limit_bytes} are read", os.fspath(path))
        data = os.read(descriptor, size)
        while len(data) < size and (part := os.read(descriptor, size - len(data))):
            data += part
        return data
    finally:
        os.close(descriptor)


def _opened(path: str | os.PathLike[str]) -> tuple[int, int]:
    """The descriptor and the size of a regular file."""
    descriptor = os.open(path, _FLAGS)
    status = os.fstat(descriptor)
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFREG:
        return descriptor, status.st_size
    os.close(descriptor)
    raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, not a regular file", os.fspath(path))
