"""Files of this package below ``FIB_CACHE_PATH``: tables and probe verdicts."""

from __future__ import annotations

from pathlib import Path

from fib_schema.files import atomic_write, find_private_folder, private_folder, read_private

CACHE_FOLDER = "apply-v1"
"""The folder below ``FIB_CACHE_PATH``."""


def publish(root: Path, name: str, data: bytes) -> None:
    """Write a file atomically; no other user can read or replace it.

    Args:
        root: ``FIB_CACHE_PATH``.
        name: The file's path below `CACHE_FOLDER`.
        data: The content.

    Raises:
        OSError: The file cannot be written, or another user can change its folder.
    """
    folder = private_folder(root / CACHE_FOLDER)
    for part in Path(name).parts[:-1]:
        folder = private_folder(folder / part)
    atomic_write(folder / Path(name).name, data, mode=0o600)


def read_published(root: Path, name: str) -> bytes:
    """Read a file that `publish` wrote.

    Raises:
        FileNotFoundError: There is none.
        OSError: The file cannot be read, or another user can change it or its folder.
    """
    path = root / CACHE_FOLDER / name
    folder = find_private_folder(path.parent)
    if folder is None:
        raise FileNotFoundError(path)
    return read_private(folder / path.name)
