"""The cache of compiled libraries.

A library lies in ``<builder>/<key>/<variant>/`` beside a manifest with its size and SHA-256, and is
published by renaming that folder into place. The key covers everything that decides what the
library does; the folder below it stands for the compilers that made it and the architectures it is
for, so that a machine without those compilers can still use what is there. Nothing is loaded that
does not match its manifest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from fib_schema.files import atomic_write, staged

from ._sources import discard

LIBRARY = "library.so"
FAILURES = "failures"
MANIFEST = "manifest.json"
_MANIFEST_VERSION = 1
_LOOK_SECONDS = 0.2
"""Between looks at whether anybody waits for a lock."""


@attrs.frozen
class Failure:
    """A command that will fail again."""

    command: str
    exit_code: int | None
    lines: tuple[str, ...]
    log_path: str


@attrs.frozen
class ArtefactStore:
    """The libraries of one builder.

    Args:
        root: The builder's folder.
    """

    root: Path

    def find(self, key: str, variant: str) -> Path | None:
        """The verified library of one variant."""
        folder = self.root / key / variant
        return folder / LIBRARY if is_intact(folder) else None

    def find_all(self, key: str) -> list[Path]:
        """The verified libraries of all variants."""
        folder = self.root / key
        if not folder.is_dir():
            return []
        names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        return [library for name in names if (library := self.find(key, name))]

    def facts(self, library: Path) -> Mapping[str, Any]:
        """What the builder noted about a library when it made it."""
        manifest = json.loads(library.with_name(MANIFEST).read_bytes())
        facts: Mapping[str, Any] = manifest["facts"]
        return facts

    def add(self, key: str, variant: str, built: Path, facts: Mapping[str, Any]) -> Path:
        """Publish a library, replacing one that is damaged; call it under `lock`.

        Raises:
            OSError: The cache cannot be written.
        """
        folder = self.root / key / variant
        with staged(folder, keeps_existing=True) as temporary:
            temporary.mkdir()
            shutil.move(built, temporary / LIBRARY)
            manifest = {"version": _MANIFEST_VERSION, **_measure(temporary / LIBRARY), "facts": dict(facts)}
            (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
            if folder.exists():
                discard(folder)
        return folder / LIBRARY

    @contextmanager
    def lock(self, key: str, *, wait_seconds: float, is_stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Hold the lock of one key, across processes and threads.

        Raises:
            TimeoutError: Someone else has held it for that long, or until nobody wanted it any more.
            OSError: The cache cannot be written.
        """
        from filelock import FileLock, Timeout  # 10 ms, which those who only load need not pay

        locks = self.root / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        lock = FileLock(locks / f"{key}.lock", is_singleton=False)
        start = time.monotonic()
        while not lock.is_locked:
            try:
                lock.acquire(timeout=max(0.0, min(_LOOK_SECONDS, start + wait_seconds - time.monotonic())))
            except Timeout as error:
                waited = time.monotonic() - start
                if waited >= wait_seconds or is_stopped():
                    raise TimeoutError(f"{lock.lock_file} has been held for {waited:.0f} s") from error
        try:
            yield
        finally:
            lock.release()

    def new_log(self, key: str, variant: str) -> Path:
        """An empty file for the compilers' output.

        Raises:
            OSError: The cache cannot be written.
        """
        path = self.root / "logs" / f"{key}-{variant}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        return path

    def find_failure(self, key: str, variant: str) -> Failure | None:
        """What is known about a build that failed."""
        try:
            data = json.loads(self._failure(key, variant).read_bytes())
            return Failure(data["command"], data["exit_code"], tuple(data["lines"]), data["log_path"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def add_failure(self, key: str, variant: str, failure: Failure) -> None:
        """Remember a failure.

        Raises:
            OSError: The cache cannot be written.
        """
        atomic_write(self._failure(key, variant), json.dumps(attrs.asdict(failure)).encode())

    def _failure(self, key: str, variant: str) -> Path:
        return self.root / FAILURES / f"{key}-{variant}.json"


def is_intact(folder: Path) -> bool:
    """Whether a folder holds a library that matches its manifest."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if manifest["version"] != _MANIFEST_VERSION:
            return False
        found = (folder / LIBRARY).stat().st_size
        return bool(found == manifest["size_bytes"] and _digest(folder / LIBRARY) == manifest["sha256"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return False


def _measure(library: Path) -> dict[str, Any]:
    return {"size_bytes": library.stat().st_size, "sha256": _digest(library)}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
