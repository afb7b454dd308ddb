"""Build cache. Sources, compiled libraries and failures below a builder's folder, and their cache keys.

A compiled library is the file ``<key>/<variant>/library.so`` beside a manifest with its size and SHA-256. The key
covers everything that decides what the library does; the variant covers the compilers that made it and the
architectures that it is for, so that a machine without a compiler can use what another one built. A library is loaded
only if it matches its manifest.

Folders are written beside their final place and renamed, so that a killed build leaves nothing that is used.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from fib_schema import AxisConst, Definition, SourceFile, TensorSpec
from fib_schema.files import atomic_write, staged, temporary_path
from fib_schema.framing import framed

from .errors import BuildProblem

LIBRARY = "library.so"
FAILURES = "failures"
LOCKS = "locks"
LOGS = "logs"
MANIFEST = "manifest.json"
_MANIFEST_VERSION = 1
_POLL_SECONDS = 0.2
"""Between two checks whether the build was cancelled while it waits for a lock."""
_ATTEMPTS = 5


@attrs.frozen
class Failure:
    """A compiler command that fails whenever it is repeated."""

    details: tuple[str, ...]
    """The first error lines."""
    command: str
    exit_code: int | None
    """None if the command was killed."""
    log_path: str


@attrs.frozen
class ArtifactStore:
    """The compiled libraries of one builder. Its methods raise `OSError` if the cache cannot be read or written.

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
        """The facts that `add` stored with a library."""
        manifest = json.loads(library.with_name(MANIFEST).read_bytes())
        facts: Mapping[str, Any] = manifest["facts"]
        return facts

    def add(self, key: str, variant: str, built: Path, facts: Mapping[str, Any]) -> Path:
        """Publish a library, replacing a damaged one; the caller holds `lock`."""
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
            TimeoutError: Another build held it for that long, or until this one was cancelled.
        """
        from filelock import FileLock, Timeout  # 10 ms, which a cache hit need not pay

        path = self.root / LOCKS / f"{key}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, is_singleton=False)
        start = time.monotonic()
        while not lock.is_locked:
            try:
                lock.acquire(timeout=max(0.0, min(_POLL_SECONDS, start + wait_seconds - time.monotonic())))
            except Timeout as error:
                waited = time.monotonic() - start
                if waited >= wait_seconds or is_stopped():
                    raise TimeoutError(f"{path} has been held for {waited:.0f} s") from error
        try:
            yield
        finally:
            lock.release()

    def new_log(self, key: str, variant: str) -> Path:
        """An empty file for the output of compilers."""
        path = self.root / LOGS / f"{key}-{variant}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        return path

    def find_failure(self, key: str, variant: str) -> Failure | None:
        """The recorded failure of an earlier build."""
        try:
            data = json.loads(self._failure(key, variant).read_bytes())
            return Failure(**{**data, "details": tuple(data["details"])})
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def add_failure(self, key: str, variant: str, failure: Failure) -> None:
        """Record a failure."""
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
        return bool(found == manifest["size_bytes"] and _sha256(folder / LIBRARY) == manifest["sha256"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return False


def _measure(library: Path) -> dict[str, Any]:
    return {"size_bytes": library.stat().st_size, "sha256": _sha256(library)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# -- folders of sources --------------------------------------------------------------------------


def ensure_sources(root: Path, name: str, sources: Sequence[SourceFile]) -> Path:
    """The folder ``root/name`` with exactly these sources in it; a folder that exists is compared first.

    Raises:
        BuildProblem: The folder cannot be written.
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
    """The problem of a cache that cannot be written."""
    reason = error.strerror or str(error)
    return BuildProblem(
        f"cannot write below {folder}: {reason}; set FIB_CACHE_PATH to a writable folder with free space"
    )


def holds_sources(folder: Path, sources: Sequence[SourceFile]) -> bool:
    """Whether every source is in the folder, byte for byte."""
    try:
        return all((folder / source.path).read_bytes() == _encoded(source) for source in sources)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False


def write_sources(folder: Path, sources: Iterable[SourceFile]) -> None:
    """Write sources below a folder; `Solution` guarantees that their paths are relative and stay inside."""
    for source in sources:
        path = folder / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_encoded(source))


def temporary_folder(root: Path) -> Path:
    """A new folder for a build, beside the published ones; the caller removes it."""
    folder = temporary_path(root)
    folder.mkdir(parents=True)
    return folder


def discard(folder: Path) -> None:
    """Delete a folder that other processes may read: it is renamed first, so that none sees half of it."""
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


def _encoded(source: SourceFile) -> bytes:
    return source.content.encode("utf-8", "surrogatepass")


# -- cache keys ----------------------------------------------------------------------------------


def digest(parts: Iterable[str | bytes], length: int = 40) -> str:
    """Hexadecimal digits; two different sequences of parts have different ones."""
    return hashlib.sha256(framed(parts)).hexdigest()[:length]


def interface_digest(definition: Definition) -> str:
    """A digest of name, axes, inputs and outputs, without descriptions and reference code."""
    axes = ((name, str(axis.value) if isinstance(axis, AxisConst) else "") for name, axis in definition.axes.items())
    return digest((
        definition.name,
        framed(map(framed, axes)),
        framed(_tensors(definition.inputs)),
        framed(_tensors(definition.outputs)),
    ))  # fmt: skip


def _tensors(specs: Mapping[str, TensorSpec]) -> Iterator[bytes]:
    for name, spec in specs.items():
        shape = b"scalar" if spec.shape is None else framed(("tensor", *spec.shape))
        yield framed((name, shape, spec.dtype, "optional" if spec.optional else ""))
