"""Build cache. Compiled libraries and failures below a builder's folder, and their cache keys.

A compiled library is the file ``<key>/<variant>/library-<digest>.so`` beside a manifest with its key, size and SHA-256,
and with the inputs that are not in the key. The key covers what is compiled: sources, interface, flags, and the
machine; the variant covers the compilers that made it and the architectures that it is for, so that a machine without
a compiler can use what another one built. A library is loaded only if it matches its manifest and its inputs are
unchanged. Its name contains its digest, because the dynamic loader takes a replaced file of one name for the one that
it has loaded.

Folders belong to this user alone. They are written beside their final place and renamed, so that a killed build leaves
nothing that is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from fib_schema import AxisConst, Definition, TensorSpec
from fib_schema.files import atomic_write, staged
from fib_schema.framing import framed
from fib_schema.private_files import find_private_folder, private_folder, read_private

from ._elf import load_problem
from ._inputs import Inputs
from ._source_folders import discard

FAILURES = "failures"
LOCKS = "locks"
LOGS = "logs"
MANIFEST = "manifest.json"
_MANIFEST_VERSION = 2
_POLL_SECONDS = 0.2
"""Between two checks whether the build was cancelled while it waits for a lock."""


CANCELLED = "killed because the build was cancelled"


@attrs.frozen
class Failure:
    """A compiler command that fails whenever it is repeated."""

    details: tuple[str, ...]
    """The first error lines."""
    command: str
    exit_code: int | None
    """None if the command was killed."""
    log_path: str

    @property
    def is_cancelled(self) -> bool:
        """Whether the command was killed because its result is no longer wanted, e.g. when the program ends."""
        return self.details == (CANCELLED,)


@attrs.frozen
class Library:
    """A library that matches its manifest."""

    path: Path
    facts: Mapping[str, Any]
    """Metadata that `ArtifactStore.add` stored with it."""
    inputs: Inputs
    load_problem: str | None
    """Reason that the loader must not see it."""


@attrs.frozen
class ArtifactStore:
    """The compiled libraries of one builder. Its methods raise `OSError` if the cache cannot be read or written.

    Args:
        root: The builder's folder, a private one.
    """

    root: Path

    def find(self, key: str, variant: str) -> Library | None:
        """The verified library of one variant."""
        root = find_private_folder(self.root)
        return None if root is None else read_entry(root / key / variant)

    def find_all(self, key: str) -> list[Library]:
        """The verified libraries of all variants."""
        folder = self.root / key
        if not folder.is_dir():
            return []
        names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        return [library for name in names if (library := self.find(key, name))]

    def add(self, key: str, variant: str, built: Path, facts: Mapping[str, Any], inputs: Inputs) -> Library:
        """Publish a library, replacing the entry that there is; the caller holds `lock`."""
        folder = private_folder(private_folder(self.root) / key) / variant
        sha256 = _sha256(built.read_bytes())
        manifest = {
            "version": _MANIFEST_VERSION,
            "place": [key, variant],
            "size_bytes": built.stat().st_size,
            "sha256": sha256,
            "facts": dict(facts),
            "inputs": inputs.to_plain(),
        }
        with staged(folder, keeps_existing=True) as temporary:
            temporary.mkdir(mode=0o700)
            built.chmod(0o600)
            built.rename(temporary / library_name(sha256))
            atomic_write(temporary / MANIFEST, (json.dumps(manifest) + "\n").encode(), mode=0o600)
            if os.path.lexists(folder):
                discard(folder)
        library = read_entry(folder)
        if library is None:
            raise OSError(0, f"the entry {folder} was damaged while it was written")
        return library

    @contextmanager
    def lock(self, key: str, *, wait_seconds: float, is_stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Hold the lock of one key, across processes and threads.

        Raises:
            TimeoutError: Another build held it for that long, or until this one was cancelled.
        """
        from filelock import FileLock, Timeout  # 10 ms, which a cache hit need not pay

        path = self._folder(LOCKS) / f"{key}.lock"
        lock = FileLock(path, is_singleton=False, mode=0o600)
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
        path = self._folder(LOGS) / f"{key}-{variant}.log"
        atomic_write(path, b"", mode=0o600)
        return path

    def find_failure(self, key: str, variant: str) -> Failure | None:
        """The recorded failure of an earlier build, if it would fail again."""
        try:
            data = json.loads(read_private(self._failure(key, variant)))
            if data.pop("version") != _MANIFEST_VERSION or not Inputs.from_plain(data.pop("inputs")).is_current():
                return None
            return Failure(**{**data, "details": tuple(data["details"])})
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def add_failure(self, key: str, variant: str, failure: Failure, inputs: Inputs) -> None:
        """Record a failure that depends on these inputs and on nothing else outside of the key."""
        data = {"version": _MANIFEST_VERSION, "inputs": inputs.to_plain(), **attrs.asdict(failure)}
        self._folder(FAILURES)
        atomic_write(self._failure(key, variant), json.dumps(data).encode(), mode=0o600)

    def _failure(self, key: str, variant: str) -> Path:
        return self.root / FAILURES / f"{key}-{variant}.json"

    def _folder(self, name: str) -> Path:
        return private_folder(private_folder(self.root) / name)


def library_name(sha256: str) -> str:
    """The name of a library's file."""
    return f"library-{sha256[:16]}.so"


def read_entry(folder: Path) -> Library | None:
    """The library of an entry; None if it is missing or damaged, or was published as another entry.

    Raises:
        UnsafePath: Another user can change it.
    """
    try:
        manifest = json.loads(read_private(folder / MANIFEST))
        if manifest["version"] != _MANIFEST_VERSION or manifest["place"] != [folder.parent.name, folder.name]:
            return None
        path = folder / library_name(manifest["sha256"])
        data = read_private(path)
        if len(data) != manifest["size_bytes"] or _sha256(data) != manifest["sha256"]:
            return None
        facts = dict(manifest["facts"])
        return Library(path, facts, Inputs.from_plain(manifest["inputs"]), load_problem(data))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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
