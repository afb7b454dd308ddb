"""Reading of files that somebody else may be changing: each is opened once, and checked on its descriptor."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from ..files import BINARY
from .errors import FileState, NotAsSigned
from .manifest import SignedFile

_FLAGS = os.O_RDONLY | BINARY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""A link as the last part of a path is refused, and opening a pipe does not wait. Windows has neither flag."""
_CHUNK_BYTES = 1 << 20


class NotRegular(Exception):
    """A path that is a link, folder, pipe, socket or device, or a file that is too large."""


@contextmanager
def open_regular(path: str | os.PathLike[str]) -> Iterator[tuple[FileIO, int]]:
    """Open a regular file; yields it with its size.

    Raises:
        FileNotFoundError: There is no such file.
        NotRegular: It is something else.
        OSError: It cannot be opened.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if not isinstance(error, FileNotFoundError) and Path(path).is_symlink():
            raise NotRegular("is a link") from error
        if isinstance(error, IsADirectoryError):
            raise NotRegular("is a folder") from error
        raise
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotRegular("is not a regular file")
        yield file, status.st_size


def read_regular(path: str | os.PathLike[str], limit_bytes: int) -> bytes:
    """Read a regular file.

    Raises:
        FileNotFoundError: There is no such file.
        NotRegular: It is something else, or larger than the limit.
        OSError: It cannot be read.
    """
    with open_regular(path) as (file, size):
        if size > limit_bytes:
            raise NotRegular(f"has {size} bytes, and at most {limit_bytes} are read")
        return read_start(file, size)


def read_signed(root: str, signed: SignedFile) -> bytes:
    """Read the signed part of a file and verify it; these bytes, and no later ones, are those that were signed.

    Raises:
        NotAsSigned: The file is missing, changed, or cannot be read.
    """
    with _opened(root, signed) as (file, _):
        data = read_start(file, signed.size)
    _check_hash(signed, len(data), hashlib.sha256(data).hexdigest())
    return data


def check_signed(root: str, signed: SignedFile) -> int:
    """Verify a file of any size in constant memory; returns the number of appended bytes.

    Raises:
        NotAsSigned: The file is missing, changed, or cannot be read.
    """
    with _opened(root, signed) as (file, size):
        done, digest = hash_start(file, signed.size)
    _check_hash(signed, done, digest)
    return size - signed.size


def hash_start(file: FileIO, size: int) -> tuple[int, str]:
    """Hash the first bytes of a file; returns their number, less than asked for if the file was cut, and the hash."""
    digest, left = hashlib.sha256(), size
    while left > 0 and (chunk := file.read(min(left, _CHUNK_BYTES))):
        digest.update(chunk)
        left -= len(chunk)
    return size - left, digest.hexdigest()


@contextmanager
def _opened(root: str, signed: SignedFile) -> Iterator[tuple[FileIO, int]]:
    try:
        with open_regular(f"{root}/{signed.path}") as (file, size):
            if size < signed.size:
                raise _differs(signed, f"it has {size} bytes, and {signed.size} were signed")
            if size > signed.size and not signed.may_grow:
                raise _differs(signed, f"it has {size} bytes, and {signed.size} were signed")
            yield file, size
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotAsSigned(signed.path, FileState.MISSING, "signed, but missing", signed.definitions) from error
    except NotRegular as error:
        raise _differs(signed, f"it {error}") from error
    except OSError as error:
        raise _differs(signed, f"it cannot be read: {error.strerror or error}") from error


def read_start(file: FileIO, size: int) -> bytes:
    """The first bytes of a file; fewer if it was cut meanwhile."""
    chunks, left = [], size
    while left > 0 and (chunk := file.read(left)):
        chunks.append(chunk)
        left -= len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _check_hash(signed: SignedFile, size: int, sha256: str) -> None:
    if size != signed.size:
        raise _differs(signed, f"it was cut to {size} bytes while it was read, and {signed.size} were signed")
    if sha256 != signed.sha256:
        part = f"of its first {size} bytes " if signed.may_grow else ""
        raise _differs(signed, f"the sha256 {part}is {sha256[:16]}, and {signed.sha256[:16]} was signed")


def _differs(signed: SignedFile, problem: str) -> NotAsSigned:
    return NotAsSigned(signed.path, FileState.CHANGED, f"changed after signing: {problem}", signed.definitions)
