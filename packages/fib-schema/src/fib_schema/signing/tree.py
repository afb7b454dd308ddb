"""Listing of the files that a signature covers."""

from __future__ import annotations

import os
from collections.abc import Iterator

import attrs

from .manifest import FOLDERS


@attrs.frozen
class Entry:
    """Something below one of the covered folders."""

    path: str
    """Below the root, with ``/``."""
    problem: str | None = None
    """Reason that it cannot be signed; None for a regular file."""


def list_tree(root: str | os.PathLike[str]) -> list[Entry]:
    """Everything below the covered folders that is not hidden, sorted by path; no link is followed."""
    found: list[Entry] = []
    pending = [folder for folder in FOLDERS if os.path.lexists(os.path.join(root, folder))]
    for folder in list(pending):
        if os.path.islink(os.path.join(root, folder)):
            pending.remove(folder)
            found.append(Entry(folder, "is a link; copy what it points to instead"))
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as entries:
                for entry in entries:
                    if not entry.name.startswith("."):
                        found += _visited(entry, f"{folder}/{entry.name}", pending)
        except OSError as error:
            found.append(Entry(folder, f"cannot be read: {error.strerror or error}"))
    return sorted(found, key=lambda entry: entry.path)


def _visited(entry: os.DirEntry[str], path: str, pending: list[str]) -> Iterator[Entry]:
    if entry.is_symlink():
        yield Entry(path, "is a link; copy what it points to instead")
    elif entry.is_dir(follow_symlinks=False):
        pending.append(path)
    elif entry.is_file(follow_symlinks=False):
        yield Entry(path)
    else:
        yield Entry(path, "is not a regular file; remove it")
