"""Folders of sources below a builder's folder. They are complete, hold nothing else, and are replaced as a whole."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from fib_schema import SourceFile
from fib_schema.files import staged, temporary_path
from fib_schema.private_files import UnsafePath, private_folder, read_private

from .errors import BuildProblem

_ATTEMPTS = 5


def ensure_sources(root: Path, name: str, sources: Sequence[SourceFile]) -> Path:
    """The folder ``root/name`` with exactly these sources in it; a folder with anything else is replaced.

    Args:
        root: A private folder.
        name: The folder's name.
        sources: Its content.

    Raises:
        BuildProblem: The folder cannot be written, or another user can change it.
    """
    folder = root / name
    try:
        for _ in range(_ATTEMPTS):
            if holds_sources(folder, sources):
                return folder
            _replace(folder, sources)
    except OSError as error:
        raise unwritable(root, error) from error
    raise BuildProblem(
        f"{folder}: another process changed it {_ATTEMPTS} times; do not share a cache between versions of FIB"
    )


def unwritable(folder: Path, error: OSError) -> BuildProblem:
    """The problem of a cache that cannot be used."""
    if isinstance(error, UnsafePath):
        return BuildProblem(f"the cache is not safe to use: {error}")
    reason = error.strerror or str(error)
    return BuildProblem(
        f"cannot write below {folder}: {reason}; set FIB_CACHE_PATH to a writable folder with free space"
    )


def holds_sources(folder: Path, sources: Sequence[SourceFile]) -> bool:
    """Whether a folder holds every source, byte for byte, and nothing else.

    Raises:
        OSError: A file cannot be read.
    """
    wanted = {source.path: encoded(source) for source in sources}
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode) or _listing(folder) != _expected(wanted):
            return False
        return all(read_private(folder / path) == data for path, data in wanted.items())
    except (FileNotFoundError, NotADirectoryError, UnsafePath):
        return False


def write_sources(folder: Path, sources: Iterable[SourceFile]) -> None:
    """Write sources below a folder; `Solution` guarantees that their paths are relative and stay inside."""
    for source in sources:
        path = folder / source.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(encoded(source))


def temporary_folder(root: Path) -> Path:
    """A new folder for a build, beside the published ones; the caller removes it."""
    private_folder(root)
    folder = temporary_path(root)
    folder.mkdir(mode=0o700)
    return folder


def discard(folder: Path) -> None:
    """Delete a file or folder that other processes may read: it is renamed first, so that none sees half of it."""
    grave = temporary_path(folder.parent)
    grave.mkdir(mode=0o700)
    try:
        folder.rename(grave / folder.name)
    except FileNotFoundError:
        pass  # another process was faster
    finally:
        shutil.rmtree(grave, ignore_errors=True)


def encoded(source: SourceFile) -> bytes:
    """The bytes of a source's file."""
    return source.content.encode("utf-8", "surrogatepass")


def _replace(folder: Path, sources: Sequence[SourceFile]) -> None:
    with staged(folder, keeps_existing=True) as temporary:
        temporary.mkdir(mode=0o700)
        write_sources(temporary, sources)
        if os.path.lexists(folder) and not holds_sources(folder, sources):  # another process may have been faster
            discard(folder)


def _listing(folder: Path) -> set[str]:
    """All files and folders below a folder; the names of folders end in a slash."""
    return set(_entries(str(folder), ""))


def _entries(folder: str, prefix: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield f"{name}/"
                yield from _entries(entry.path, f"{name}/")
            else:
                yield name


def _expected(paths: Iterable[str]) -> set[str]:
    normal = [PurePosixPath(path) for path in paths]
    folders = {f"{parent}/" for path in normal for parent in path.parents if parent.parts}
    return {*map(str, normal), *folders}
