"""Sources on disk, below the build folder and nowhere else.

A folder is written beside its final place and renamed into it, so that a killed writer leaves
nothing that is taken for sources. Before a folder is used again its content is compared.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from fib_schema import Solution, SourceFile
from fib_schema.files import staged, temporary_path

from .errors import BuildError

_ATTEMPTS = 5


def ensure_sources(root: Path, name: str, solution: Solution, builder: str) -> Path:
    """The folder ``root/name`` with exactly the solution's sources in it.

    Raises:
        BuildError: The folder cannot be written.
    """
    folder = root / name
    try:
        for _ in range(_ATTEMPTS):
            if holds_sources(folder, solution.sources):
                return folder
            _replace(folder, solution.sources)
    except OSError as error:
        raise BuildError(solution.name, builder, cache_problem(root, error)) from error
    raise BuildError(
        solution.name, builder, f"{folder} changes while it is being written; is another version of FIB at it?"
    )


def cache_problem(folder: Path, error: OSError) -> str:
    """What to say when the cache cannot be written."""
    reason = error.strerror or str(error)
    return f"cannot write below {folder}: {reason}; set FIB_CACHE_PATH to a writable folder with free space"


def holds_sources(folder: Path, sources: Sequence[SourceFile]) -> bool:
    """Whether every source is in the folder, byte for byte."""
    try:
        return all(
            (folder / source.path).read_bytes() == source.content.encode("utf-8", "surrogatepass") for source in sources
        )
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False


def write_sources(folder: Path, sources: Iterable[SourceFile]) -> None:
    """Write sources below a folder; their paths are relative and normal, which Solution guarantees."""
    for source in sources:
        path = folder / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.content.encode("utf-8", "surrogatepass"))


def temporary_folder(root: Path) -> Path:
    """A new folder for a build, beside the published ones; the caller removes it."""
    folder = temporary_path(root)
    folder.mkdir(parents=True)
    return folder


def discard(folder: Path) -> None:
    """Take a folder out of its place, then delete it, so that no reader sees half of it."""
    grave = temporary_folder(folder.parent)
    try:
        folder.rename(grave / folder.name)
    except FileNotFoundError:
        pass  # another process was faster
    finally:
        shutil.rmtree(grave, ignore_errors=True)


def _replace(folder: Path, sources: Sequence[SourceFile]) -> None:
    with staged(folder, keeps_existing=True) as temporary:
        temporary.mkdir()
        write_sources(temporary, sources)
        if folder.exists() and not holds_sources(folder, sources):  # another process may have been faster
            discard(folder)
