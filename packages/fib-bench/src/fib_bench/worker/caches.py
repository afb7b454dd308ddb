"""The part of the build cache that a worker has to itself.

What a solution's worker can write, the solution can change: sources, libraries and bytecode that
another one would load. So each solution builds into a folder of its own, named by a digest of its
content, and so does each reference. Libraries that were compiled ahead, by ``fib-compile build``,
are copied from the common cache, which no worker writes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import attrs
from fib_compile.builder import CACHE_FOLDER
from fib_compile.inventory import EntryKind, cache_entries
from fib_schema import Solution, SupportedLanguages, get_fib_cache_path, parse_json

from ..transport.protocol import Build

FOLDER = "fib-bench-v1"
"""The folder below ``FIB_CACHE_PATH`` that holds the workers' caches; it may be deleted at any time."""
COMPILED = (SupportedLanguages.CPP, SupportedLanguages.CUDA)
"""What compilers can make ahead of time."""


@attrs.frozen
class Occupant:
    """What will run in a worker.

    Args:
        name: A word that the same content always has, and no other.
        solution: None for a reference, or for nothing.
    """

    name: str
    solution: Solution | None = None

    @classmethod
    def of(cls, request: object) -> Occupant:
        """What the first request to a worker will have it run."""
        if not isinstance(request, Build):
            return cls("nothing")
        if request.solution is None:
            return cls(f"reference-{hashlib.sha256(request.definition.encode()).hexdigest()[:32]}")
        solution = parse_json(request.solution, Solution)
        return cls(f"solution-{solution.hash()[:32]}", solution)


def own_cache(occupant: Occupant, owner: int) -> Path:
    """The cache of an occupant, made if it is not there; the user `owner` can write it.

    Raises:
        OSError: It cannot be made.
    """
    folder = get_fib_cache_path() / FOLDER / f"{occupant.name}-{owner}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _make(folder, occupant, owner)
    if folder.stat().st_uid != owner:
        raise PermissionError(f"{folder} belongs to somebody else; delete it")
    return folder


def _make(folder: Path, occupant: Occupant, owner: int) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=folder.parent))
    try:
        if occupant.solution is not None and occupant.solution.spec.language in COMPILED:
            _copy_compiled(occupant.solution.name, temporary)
        _give(temporary, owner)
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another worker was faster
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _copy_compiled(solution: str, target: Path) -> None:
    """Copy what the common cache holds for solutions of this name; the builder finds by content what fits."""
    common = get_fib_cache_path() / CACHE_FOLDER
    for entry in cache_entries():
        if entry.kind is EntryKind.LIBRARY and entry.solution == solution:
            shutil.copytree(entry.path, target / CACHE_FOLDER / entry.path.relative_to(common))


def _give(folder: Path, owner: int) -> None:
    """Give a new folder, which nobody else has written, to another user."""
    if owner == os.getuid():
        return
    for path, folders, files, descriptor in os.fwalk(folder):
        del path
        for name in (*folders, *files):
            os.chown(name, owner, owner, dir_fd=descriptor, follow_symlinks=False)
    os.chown(folder, owner, owner)
