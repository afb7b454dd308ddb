"""Build cache. Compiled libraries, failures and sources below a builder's folder, and their keys.

A compiled library is the file ``<key>/<variant>/library-<digest>.so`` beside a manifest with its key, size and SHA-256,
and with the files outside of the key that were compiled into it. The key covers what is compiled: sources, interface,
flags, and the machine; the variant covers the compilers that made it and the architectures that it is for, so that a
machine without a compiler can use what another one built. A library is loaded only if it matches its manifest and its
inputs are unchanged. Its name contains its digest, because the dynamic loader takes a replaced file of one name for the
one that it has loaded.

Folders belong to this user alone. They are written beside their final place and renamed, so that a killed build leaves
nothing that is used.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import attrs
from fib_schema import AxisConst, Definition, SourceFile, TensorSpec, get_fib_cache_path
from fib_schema.files import (
    UnsafePath,
    atomic_write,
    find_private_folder,
    private_folder,
    read_private,
    staged,
    temporary_path,
)
from fib_schema.solution import framed

from .errors import BuildProblem

CACHE_FOLDER = "fib-compile-v2"
"""The folder of all builds below ``FIB_CACHE_PATH``; a change of its layout changes its name."""
JIT_FOLDER = "jit"
FAILURES = "failures"
LOCKS = "locks"
LOGS = "logs"
MANIFEST = "manifest.json"
CANCELLED = "killed because the build was cancelled"
_MANIFEST_VERSION = 3
_POLL_SECONDS = 0.2
"""Between two checks whether the build was cancelled while it waits for a lock."""


def cache_root() -> Path:
    """The folder of fib-compile below ``FIB_CACHE_PATH``, which is read at every use."""
    return get_fib_cache_path() / CACHE_FOLDER


def published_libraries(solution: str) -> Iterator[Path]:
    """The folders of the libraries of all solutions of a name, in the caches of all builders."""
    for manifest in sorted(cache_root().glob(f"[!.]*/[!.]*/[!.]*/{MANIFEST}")):
        with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged manifest
            if json.loads(manifest.read_bytes())["facts"]["solution"] == solution:
                yield manifest.parent


# -- inputs that are not in the key ----------------------------------------------------------------


class InputFile(NamedTuple):
    """A header or library outside of the sources, with its content's digest; the rest saves reading a file again."""

    path: str
    size_bytes: int
    modified_ns: int
    changed_ns: int
    """The time that only root can set."""
    sha256: str

    @classmethod
    def of(cls, path: str) -> InputFile:
        """The file as it is now.

        Raises:
            OSError: It cannot be read.
        """
        with Path(path).open("rb") as file:
            found = os.fstat(file.fileno())
            state = found.st_size, found.st_mtime_ns, found.st_ctime_ns
            return cls(path, *state, hashlib.file_digest(file, "sha256").hexdigest())

    def is_current(self) -> bool:
        """Whether the file has the same content. A hit checks hundreds of files, in 1 us each."""
        try:
            found = os.stat(self.path)  # noqa: PTH116 half the time of Path.stat
            is_untouched = (found.st_size, found.st_mtime_ns, found.st_ctime_ns) == self[1:4]
            return is_untouched or InputFile.of(self.path).sha256 == self.sha256
        except OSError:
            return False


# -- libraries -------------------------------------------------------------------------------------


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
    inputs: tuple[InputFile, ...]

    def is_current(self) -> bool:
        """Whether the same command would read the same files."""
        return all(file.is_current() for file in self.inputs)


@attrs.frozen
class ArtifactStore:
    """The compiled libraries of one builder, below its private folder.

    Its methods raise `OSError` if the cache cannot be read or written.
    """

    root: Path

    def find_all(self, key: str) -> list[Library]:
        """The verified libraries of all variants."""
        root = find_private_folder(self.root)
        if root is None or not (root / key).is_dir():
            return []
        folders = sorted(path for path in (root / key).iterdir() if not path.name.startswith("."))
        return [library for folder in folders if (library := read_entry(folder))]

    def add(
        self, key: str, variant: str, built: Path, facts: Mapping[str, Any], inputs: Iterable[InputFile] = ()
    ) -> Library:
        """Publish a library, replacing the entry that there is; the caller holds `lock`."""
        folder = private_folder(private_folder(self.root) / key) / variant
        sha256 = _sha256(built.read_bytes())
        manifest = {
            "version": _MANIFEST_VERSION,
            "place": [key, variant],
            "size_bytes": built.stat().st_size,
            "sha256": sha256,
            "facts": dict(facts),
            "inputs": list(inputs),
        }
        with staged(folder, keeps_existing=True) as temporary:
            temporary.mkdir(mode=0o700)
            built.chmod(0o600)
            built.rename(temporary / _library_name(sha256))
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
        path = self._folder(LOCKS) / f"{key}.lock"
        start = time.monotonic()
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
            while not _is_taken(file):
                waited = time.monotonic() - start
                if waited >= wait_seconds or is_stopped():
                    raise TimeoutError(f"{path} has been held for {waited:.0f} s")
                time.sleep(min(_POLL_SECONDS, wait_seconds - waited))
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # also for processes that were forked meanwhile

    def new_log(self, key: str, variant: str) -> Path:
        """An empty file for the output of compilers."""
        path = self._folder(LOGS) / f"{key}-{variant}.log"
        atomic_write(path, b"", mode=0o600)
        return path

    def find_failure(self, key: str, variant: str) -> Failure | None:
        """The recorded failure of an earlier build."""
        try:
            data = json.loads(read_private(self._failure(key, variant)))
            return Failure(**{**data, "details": tuple(data["details"])})
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def add_failure(self, key: str, variant: str, failure: Failure) -> None:
        """Record a failure whose cause is in the key and the variant."""
        self._folder(FAILURES)
        atomic_write(self._failure(key, variant), json.dumps(attrs.asdict(failure)).encode(), mode=0o600)

    def _failure(self, key: str, variant: str) -> Path:
        return self.root / FAILURES / f"{key}-{variant}.json"

    def _folder(self, name: str) -> Path:
        return private_folder(private_folder(self.root) / name)


def _is_taken(file: IO[bytes]) -> bool:
    """Try to take the lock of a file; returns whether this one has it now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_entry(folder: Path) -> Library | None:
    """The library of an entry; None if it is missing or damaged, or was published as another entry.

    Raises:
        UnsafePath: Another user can change it.
    """
    try:
        manifest = json.loads(read_private(folder / MANIFEST))
        if manifest["version"] != _MANIFEST_VERSION or manifest["place"] != [folder.parent.name, folder.name]:
            return None
        path = folder / _library_name(manifest["sha256"])
        data = read_private(path)
        if len(data) != manifest["size_bytes"] or _sha256(data) != manifest["sha256"]:
            return None
        return Library(path, dict(manifest["facts"]), tuple(map(InputFile._make, manifest["inputs"])))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def _library_name(sha256: str) -> str:
    return f"library-{sha256[:16]}.so"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- keys ------------------------------------------------------------------------------------------


def digest(parts: Iterable[str | bytes], length: int = 40) -> str:
    """Hexadecimal digits; two different sequences of parts have different ones."""
    return hashlib.sha256(framed(parts)).hexdigest()[:length]


@cache
def machine() -> str:
    """The machine of this process: of two machines that share a home folder, each has a name of its own."""
    return f"{platform.machine()}-{sys.maxsize.bit_length() + 1}"


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


# -- folders of sources ----------------------------------------------------------------------------


def ensure_sources(root: Path, name: str, sources: Sequence[SourceFile]) -> Path:
    """The folder ``root/name`` with these sources in it, made if it is not there; its name is unique to the content.

    Raises:
        BuildProblem: The folder cannot be written, or another user can change it.
    """
    folder = root / name
    try:
        if find_private_folder(folder) is None:
            with staged(folder, keeps_existing=True) as temporary:
                temporary.mkdir(mode=0o700)
                write_sources(temporary, sources)
    except OSError as error:
        raise unwritable(root, error) from error
    return folder


def unwritable(folder: Path, error: OSError) -> BuildProblem:
    """The problem of a cache that cannot be used."""
    if isinstance(error, UnsafePath):
        return BuildProblem(f"the cache is not safe to use: {error}")
    reason = error.strerror or str(error)
    return BuildProblem(
        f"cannot write below {folder}: {reason}; set FIB_CACHE_PATH to a writable folder with free space"
    )


def write_sources(folder: Path, sources: Iterable[SourceFile]) -> None:
    """Write sources below a folder; `Solution` guarantees that their paths are relative and stay inside."""
    for source in sources:
        path = folder / source.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(encoded(source))


def temporary_folder(root: Path) -> Path:
    """A new folder for a build, beside the published ones; the caller removes it."""
    private_folder(root)
    folder = temporary_path(root)
    folder.mkdir(mode=0o700)
    return folder


def discard(folder: Path) -> None:
    """Delete a file or folder that other processes may read: it is renamed first, so that none sees half of it."""
    grave = temporary_path(folder.parent)
    grave.mkdir(mode=0o700)
    try:
        folder.rename(grave / folder.name)
    except FileNotFoundError:
        pass  # another process was faster
    finally:
        shutil.rmtree(grave, ignore_errors=True)


def encoded(source: SourceFile) -> bytes:
    """The bytes of a source's file."""
    return source.content.encode("utf-8", "surrogatepass")
