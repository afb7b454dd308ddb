"""Build caches of workers, one for each solution and each reference.

A solution can change every file that its worker can write: sources, libraries and bytecode that another
solution would load. Each solution therefore builds into a folder of its own, named by a digest of its
content. Libraries that were compiled ahead, by ``fib-compile build``, are copied from the common cache,
which no worker writes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import attrs
from fib_compile.cache import CACHE_FOLDER, cache_root, published_libraries
from fib_schema import Solution, get_fib_cache_path, parse_json
from fib_schema.files import private_folder, staged

from .temporary_folders import remove_folder
from .transport.messages import Build

FOLDER = "fib-bench-v1"
"""The folder below ``FIB_CACHE_PATH`` that holds the workers' caches; it may be deleted at any time."""


@attrs.frozen
class CacheOwner:
    """The content that a cache belongs to.

    The name is a digest of it, the same in every run; a reference has no solution.
    """

    name: str
    solution: Solution | None = None

    @classmethod
    def of(cls, request: Build) -> CacheOwner:
        """The owner for a worker with this build."""
        if request.solution is None:
            return cls(f"reference-{hashlib.sha256(request.definition.encode()).hexdigest()[:32]}")
        return cls.of_solution(parse_json(request.solution, Solution), request.cache_key)

    @classmethod
    def of_solution(cls, solution: Solution, cache_key: str = "") -> CacheOwner:
        """The owner for a solution in evaluations with a cache key."""
        digest = solution.hash()
        if cache_key:
            digest = hashlib.sha256(f"{digest} {cache_key}".encode()).hexdigest()
        return cls(f"solution-{digest[:32]}", solution)


def own_cache(owner: CacheOwner, uid: int) -> Path:
    """The cache folder of an owner, made if it is not there, in which the user `uid` can write.

    Raises:
        OSError: It cannot be made, or another user could change what is in it.
    """
    caches = private_folder(get_fib_cache_path() / FOLDER)
    if os.geteuid() == 0:
        caches.chmod(0o711)  # workers with other users reach their caches in it, and cannot list the others
    folder = caches / f"{owner.name}-{uid}"
    if not folder.is_dir():
        _make(folder, owner, uid)
    if folder.stat().st_uid != uid:
        raise PermissionError(f"cache {folder} belongs to another user; delete it")
    return folder


def remove_caches(owner: CacheOwner) -> None:
    """Remove the caches of an owner whose workers have ended; what the system does not let go stays."""
    for folder in (get_fib_cache_path() / FOLDER).glob(f"{owner.name}-*"):
        remove_folder(folder)


def _make(folder: Path, owner: CacheOwner, uid: int) -> None:
    with staged(folder, keeps_existing=True) as temporary:
        temporary.mkdir(mode=0o700)
        if owner.solution is not None and owner.solution.spec.language.is_compiled:
            _copy_compiled(owner.solution.name, temporary)
        _give(temporary, uid)


def _copy_compiled(solution: str, target: Path) -> None:
    """Copy the common cache's libraries of all solutions of this name; the builder selects by content."""
    for library in published_libraries(solution):
        folder = private_folder(target / CACHE_FOLDER)
        *above, name = library.relative_to(cache_root()).parts
        for part in above:
            folder = private_folder(folder / part)
        shutil.copytree(library, folder / name)


def _give(folder: Path, uid: int) -> None:
    """Give a new folder, in which no other user has written, to a user."""
    if uid == os.getuid():
        return
    for path, folders, files, descriptor in os.fwalk(folder):
        del path
        for name in (*folders, *files):
            os.chown(name, uid, uid, dir_fd=descriptor, follow_symlinks=False)
    os.chown(folder, uid, uid)
