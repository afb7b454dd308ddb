"""Data set of a table: lists the files that a table depends on, and reads their records with all problems.

If the settings require a signature, only files that the owner signed are listed, and each is verified when it is read,
on the bytes that are used.
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import attrs
from fib_schema import Definition, InvalidRecord, Problem, Solution, Trace
from fib_schema.codec import MAX_RECORD_BYTES, parse_upgraded
from fib_schema.data_files import list_data_files
from fib_schema.files import read_regular
from fib_schema.framing import framed

if TYPE_CHECKING:
    from fib_schema.signing import SignedFiles

R = TypeVar("R", Definition, Solution)

FOLDERS = {"definitions": ".json", "solutions": ".json", "traces": ".jsonl"}
"""The folders that a table depends on, and the suffixes of their files."""
_MAX_TRACES_BYTES = 2 << 30


def digest_of(parts: Iterable[str | bytes]) -> str:
    """A hash of a sequence of parts; parts are length-prefixed, so different sequences differ."""
    return hashlib.blake2b(framed(parts), digest_size=32).hexdigest()


@attrs.frozen
class Stored(Generic[R]):
    """A record with its file."""

    record: R
    path: str
    digest: str
    """Digest of the file's content."""


class _Ignored(Exception):
    """A file that is not used; the message says why."""


@attrs.define
class DatasetFiles:
    """The files of a data set that a table depends on."""

    root: str
    files: dict[str, list[str]]
    """Sorted paths by folder of `FOLDERS`."""
    problems: list[Problem]
    """Records that are not used, and why; grows while files are read."""
    blocked: dict[str, str] = attrs.field(factory=dict, init=False)
    """Definitions that are not routed, each with the reason."""
    _states: list[str] = attrs.field(factory=list)
    _signed: SignedFiles | None = None

    @classmethod
    def of(cls, root: str | os.PathLike[str], signers: Sequence[str] | None = None) -> DatasetFiles:
        """List a data set as `fib_schema` reads it: at any depth, without hidden files and links to the outside.

        Args:
            root: The data set's root.
            signers: The keys of whose owners one must have signed the data set; None if it need not be signed.

        Raises:
            NotSigned: None of the signers has signed it, or the manifest or its signature is not valid.
        """
        real = os.path.realpath(root)
        listed, problems = list_data_files(real, FOLDERS)
        files = {folder: [file.path for file in found] for folder, found in listed.items()}
        states = [
            f"{file.path[len(real) + 1 :]}\0{file.size_bytes} {file.modified_ns} {file.inode}"
            for found in listed.values()
            for file in found
        ]
        made = cls(real, files, problems, [*states, *map(str, problems)])
        if signers is not None:
            made._require_signature(signers)
        return made

    def _require_signature(self, signers: Sequence[str]) -> None:
        from fib_schema.signing import PublicKey, SignedFiles

        signed = self._signed = SignedFiles.open(self.root, [PublicKey(text) for text in signers])
        self._states.append(signed.digest.hex())
        unsigned = [p for paths in self.files.values() for p in paths if not signed.covers(self.relative(p))]
        self.problems += [Problem(path, "$", "ignored: not signed: added after signing") for path in unsigned]
        self.files = {
            folder: [f"{self.root}{os.sep}{path}" for path in signed.paths(folder, suffix)]
            for folder, suffix in FOLDERS.items()
        }

    def fingerprint(self) -> str:
        """Fingerprint of the path, size, modification time and inode of every file, of problems and of a signature."""
        return digest_of(self._states)

    def relative(self, path: str) -> str:
        """A listed path, relative to the root."""
        return path[len(self.root) + 1 :]

    def records(self, folder: str, cls: type[R]) -> dict[str, Stored[R]]:
        """Read the records of a folder by name. A name in two files is ambiguous, so neither counts."""
        found: dict[str, Stored[R]] = {}
        ambiguous: set[str] = set()
        for path in self.files[folder]:
            if (content := self._content(path)) is None:
                continue
            try:
                stored = _parse(content, path, cls)
            except InvalidRecord as error:
                self.problems += error.problems
                continue
            name = stored.record.name
            if name in found:
                ambiguous.add(name)
                message = f"another {cls.__name__.lower()} is named {name!r}: {found[name].path}"
                self.problems.append(Problem(path, "$", message))
            found.setdefault(name, stored)
        return {name: stored for name, stored in found.items() if name not in ambiguous}

    def traces(self, path: str) -> list[Trace]:
        """Read the evaluations of a file."""
        found = []
        for number, text in enumerate((self._content(path) or b"").split(b"\n"), start=1):
            if not text or text.isspace():
                continue
            try:
                trace = parse_upgraded(text, Trace, source=f"{path}:{number}")[0]
            except InvalidRecord as error:
                self.problems.append(_first(error))
                continue
            if trace.evaluation is not None:
                found.append(trace)
        return found

    def _content(self, path: str) -> bytes | None:
        """The content of a listed file; None, with a problem, if it is not used."""
        try:
            return _read_file(path) if self._signed is None else self._verified(path, self._signed)
        except _Ignored as error:
            self.problems.append(Problem(path, "$", f"ignored: {error}"))
        except OSError as error:
            self.problems.append(Problem(path, "$", f"cannot be read: {error.strerror}"))
        return None

    def _verified(self, path: str, signed: SignedFiles) -> bytes:
        """The signed content of a file. If it held traces and cannot be verified, their definitions are blocked."""
        from fib_schema.signing import NotAsSigned

        try:
            return signed.read(self.relative(path))
        except NotAsSigned as error:
            for definition in error.definitions:
                self.blocked.setdefault(definition, f"{path} is {error.state}, and its traces were signed")
            raise _Ignored(error.problem) from error


def _first(error: InvalidRecord) -> Problem:
    """The first problem of a line, with the number of the others."""
    problem, more = error.problems[0], len(error.problems) - 1
    return attrs.evolve(problem, message=f"{problem.message} (and {more} more)") if more else problem


def _read_file(path: str) -> bytes:
    return read_regular(path, MAX_RECORD_BYTES if path.endswith(".json") else _MAX_TRACES_BYTES)


def _parse(content: bytes, path: str, cls: type[R]) -> Stored[R]:
    return Stored(parse_upgraded(content, cls, source=path)[0], path, digest_of([content]))


def read_unchanged(path: str, cls: type[R], digest: str) -> R:
    """Read a record whose file must be unchanged since the table was made: only measured code may run.

    Raises:
        InvalidRecord: The file has changed, or cannot be read any more.
    """
    try:
        stored = _parse(_read_file(path), path, cls)
    except OSError as error:
        raise InvalidRecord(cls.__name__, (Problem(path, "$", f"cannot be read: {error.strerror}"),)) from error
    if stored.digest != digest:
        problem = Problem(path, "$", "changed after the table was made; reload the runtime")
        raise InvalidRecord(cls.__name__, (problem,))
    return stored.record


class TracesByDefinition:
    """The traces of one definition at a time, so that not all are in memory at once.

    A file belongs to the definition that its stem names. Records of another definition, which only foreign tools
    write there, are kept for it; a definition that was processed before is processed again.
    """

    def __init__(self, files: DatasetFiles, definitions: Mapping[str, object]) -> None:
        self._dataset = files
        self._paths: dict[str, list[str]] = {name: [] for name in definitions}
        self._strays: dict[str, list[Trace]] = {}
        self._read: set[str] = set()
        self._pending: dict[str, None] = dict.fromkeys(sorted(definitions, reverse=True))
        for path in files.files["traces"]:
            if (name := Path(path).stem) in definitions:
                self._paths[name].append(path)
            else:
                self._keep_strays(files.traces(path), "")

    def next_name(self) -> str | None:
        """The next definition to process; None at the end."""
        return self._pending.popitem()[0] if self._pending else None

    def of(self, name: str) -> list[Trace]:
        """The traces of a definition."""
        found = [trace for path in self._paths[name] for trace in self._dataset.traces(path)]
        if name not in self._read:
            self._read.add(name)
            self._keep_strays(found, name)
        return self._strays.get(name, []) + found

    def _keep_strays(self, traces: list[Trace], name: str) -> None:
        for trace in traces:
            other = trace.definition
            if other != name and other in self._paths:
                self._strays.setdefault(other, []).append(trace)
                self._pending[other] = None


@contextmanager
def paused_gc() -> Iterator[None]:
    """Pause the garbage collector: records have no cycles, and collections take most of the time of making many."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
