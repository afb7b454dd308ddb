"""Files of this package below ``FIB_CACHE_PATH``: tables and probe verdicts."""

from __future__ import annotations

from pathlib import Path

from fib_schema.files import atomic_write

CACHE_FOLDER = "apply-v1"
"""The folder below ``FIB_CACHE_PATH``."""


def publish(path: Path, data: bytes) -> None:
    """Write a file atomically; only its owner can read it.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic_write(path, data, mode=0o600)
