"""Inventory of the build cache. Entries with their sizes, and their removal."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path

import attrs
from fib_schema import get_fib_cache_path
from fib_schema.folder_walk import walk

from ._cache import FAILURES, LOCKS, LOGS, MANIFEST
from ._compilers import COMPILERS
from ._source_folders import discard
from .builder import CACHE_FOLDER, JIT_FOLDER

_TEMPORARY_AFTER_SECONDS = 24 * 3600


class EntryKind(StrEnum):
    """The kind of a cache entry."""

    LIBRARY = "library"
    SOURCES = "sources"
    JIT = "jit"
    """Kernels that Triton, TileLang, cuTile, CuTe DSL or Inductor compiled at run time for one solution."""
    FAILURE = "failure"
    LOG = "log"
    TEMPORARY = "temporary"
    """Left by a killed build, or in use by a running one."""


@attrs.frozen
class CacheEntry:
    """A part of the cache that can be removed by itself."""

    builder: str
    kind: EntryKind
    path: Path
    size_bytes: int
    modified: float
    """Seconds since the epoch."""
    solution: str | None = None
    """The name of the solution, if the entry records it."""


def cache_root() -> Path:
    """The folder of fib-compile below ``FIB_CACHE_PATH``."""
    return get_fib_cache_path() / CACHE_FOLDER


def cache_entries() -> list[CacheEntry]:
    """All entries of the cache, the largest first."""
    entries = [entry for folder in _folders(cache_root()) for entry in _entries_of(folder)]
    return sorted(entries, key=lambda entry: (-entry.size_bytes, str(entry.path)))


def prune(
    entries: Iterable[CacheEntry], *, older_than_seconds: float | None = None, kinds: Iterable[EntryKind] | None = None
) -> list[CacheEntry]:
    """Remove entries and return the removed ones.

    A temporary folder is only removed when it is a day old, because a running build may use it.

    Args:
        entries: From `cache_entries`.
        older_than_seconds: Remove only entries that have not changed for so long; None means no limit.
        kinds: Remove only these kinds; None is all.
    """
    wanted = frozenset(EntryKind if kinds is None else kinds)
    now = time.time()
    removed = []
    for entry in entries:
        age = now - entry.modified
        is_in_use = entry.kind is EntryKind.TEMPORARY and age < _TEMPORARY_AFTER_SECONDS
        if entry.kind in wanted and not is_in_use and (older_than_seconds is None or age >= older_than_seconds):
            _remove(entry.path)
            removed.append(entry)
    return removed


def _entries_of(folder: Path) -> Iterator[CacheEntry]:
    """The entries of one builder."""
    for path in _children(folder):
        if path.name.startswith("."):
            yield _entry(folder, EntryKind.TEMPORARY, path)
        elif path.name == FAILURES or path.name == LOGS:
            kind = EntryKind.FAILURE if path.name == FAILURES else EntryKind.LOG
            yield from (_entry(folder, kind, file) for file in _children(path))
        elif folder.name == JIT_FOLDER:
            yield _entry(folder, EntryKind.JIT, path)
        elif path.is_dir() and path.name != LOCKS:
            yield from _built(folder, path)


def _built(folder: Path, path: Path) -> Iterator[CacheEntry]:
    """A package of sources, or the libraries of one key."""
    libraries = [child for child in _children(path) if (child / MANIFEST).exists() and child.is_dir()]
    for library in libraries:
        yield _entry(folder, EntryKind.LIBRARY, library, _solution_of(library))
    if not libraries and any(path.iterdir()):
        yield _entry(folder, EntryKind.SOURCES, path)


def _entry(folder: Path, kind: EntryKind, path: Path, solution: str | None = None) -> CacheEntry:
    files = [path] if path.is_file() else [file for entry in walk(path) if (file := Path(entry.path)).is_file()]
    sizes = [file.stat().st_size for file in files if file.exists()]
    return CacheEntry(folder.name, kind, path, sum(sizes), path.stat().st_mtime, solution)


def _solution_of(library: Path) -> str | None:
    try:
        name = json.loads((library / MANIFEST).read_bytes())["facts"]["solution"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a damaged entry; the next build replaces it
    return name if isinstance(name, str) else None


def _remove(path: Path) -> None:
    if path.is_dir():
        discard(path)
        if path.parent.name != JIT_FOLDER and not any(path.parent.iterdir()):
            shutil.rmtree(path.parent, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _folders(root: Path) -> list[Path]:
    return [path for path in _children(root) if path.is_dir() and path.name != COMPILERS]


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder))
    except FileNotFoundError:
        return []
