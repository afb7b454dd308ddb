"""Walk over all folders below a folder, for all packages. It does not recurse: data sets may hold any depth of folders.

`os.walk`, `Path.rglob` and `shutil.rmtree` raise a `RecursionError` at a depth of about 1,000 on Python 3.11.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress


def walk(
    folder: str | os.PathLike[str],
    *,
    enters: Callable[[os.DirEntry[str]], bool] | None = None,
    on_error: Callable[[str, OSError], object] | None = None,
) -> Iterator[os.DirEntry[str]]:
    """Yield everything below a folder in the order of names, each folder before its content. No link is followed.

    Args:
        folder: Where to begin.
        enters: Whether to list a folder; called after the folder was yielded. None means every folder.
        on_error: Called with a folder that cannot be listed, which may also be the first one; None ignores it.
    """
    pending = _listed(os.fspath(folder), on_error)
    while pending:
        entry = pending.pop()
        yield entry
        if entry.is_dir(follow_symlinks=False) and (enters is None or enters(entry)):
            pending += _listed(entry.path, on_error)


def remove_tree(folder: str | os.PathLike[str]) -> None:
    """Remove a folder with everything in it, as far as the system allows it; links are removed, not followed."""
    folders = [os.fspath(folder)]
    for entry in walk(folder):
        if entry.is_dir(follow_symlinks=False):
            folders.append(entry.path)
        else:
            with suppress(OSError):
                os.unlink(entry.path)
    for path in reversed(folders):
        with suppress(OSError):
            os.rmdir(path)


def _listed(folder: str, on_error: Callable[[str, OSError], object] | None) -> list[os.DirEntry[str]]:
    """The entries of a folder, the first one last."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name, reverse=True)
    except OSError as error:
        if on_error is not None:
            on_error(folder, error)
        return []
