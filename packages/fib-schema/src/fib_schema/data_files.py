"""Files of a data set: their paths, the walk that finds what readers take, and reading of records and lines.

The layout is that of the public flashinfer-trace data set. Readers take files at any depth below each folder. A folder
that is no data set is recognised, and with it the data set that was probably meant. The store, validation and
migration read files by it, with every problem of a file, its text and its records; the functions that load and save
single files are public.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
import msgspec

from ._record import Record, component_problem
from .codec import MAX_RECORD_BYTES, canonical_parser, decode, format_json, parse_json, structure
from .definition import Definition
from .display import escape_line
from .errors import InvalidRecord, Problem
from .files import append_new_lines, atomic_write, open_regular, read_regular
from .problems import MISSPELT_CODE, Findings, find_misspellings
from .solution import Solution
from .trace import Trace

DEFINITIONS = "definitions"
SOLUTIONS = "solutions"
WORKLOADS = "workloads"
TRACES = "traces"
BLOB_WORKLOADS = "blob/workloads"
FOLDERS = (DEFINITIONS, SOLUTIONS, WORKLOADS, TRACES)
_MAX_SUGGESTIONS = 3
OTHER_SUFFIX = "other-suffix"
"""The code of warnings about files that readers ignore."""


def definition_file(definition: Definition) -> str:
    """The path of a definition's file below the root."""
    return f"{DEFINITIONS}/{definition.op_type}/{definition.name}.json"


def solution_file(solution: Solution, definition: Definition) -> str:
    """The path of a solution's file below the root."""
    folder = f"{SOLUTIONS}/{solution.author}/{definition.op_type}/{definition.name}"
    return f"{folder}/{solution.name}.json"


def workloads_file(definition: Definition) -> str:
    """The path of a definition's workloads below the root."""
    return f"{WORKLOADS}/{definition.op_type}/{definition.name}.jsonl"


def traces_file(author: str, definition: Definition) -> str:
    """The path of an author's traces of a definition below the root."""
    return f"{TRACES}/{author}/{definition.op_type}/{definition.name}.jsonl"


def blob_file(definition: Definition, workload_uuid: str) -> str:
    """The path of a workload's tensors below the root."""
    folder = f"{BLOB_WORKLOADS}/{definition.op_type}/{definition.name}"
    return f"{folder}/{definition.name}_{workload_uuid}.safetensors"


@attrs.frozen
class DataFile:
    """A file of a data set as it was when it was found."""

    path: str
    """Path to open."""
    name: str
    """Its path in messages: ``/`` between folders, bytes that are not UTF-8 escaped."""
    size_bytes: int
    """Lines that are appended later are not part of it."""
    modified_ns: int = 0
    inode: int = 0

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders below the root and the file name without its suffix, as they are on disk."""
        parts = self.path.split("/")[-self.name.count("/") - 1 :]
        return (*parts[:-1], parts[-1].rpartition(".")[0])

    @property
    def stem(self) -> str:
        """The file name without its suffix."""
        return self.parts[-1]


def list_files(root: str, folder: str, suffix: str, findings: Findings, *, prefix: str = "") -> list[DataFile]:
    """Every regular file with a suffix, or any, at any depth below a folder of the root, in order of paths.

    Hidden files are left out. Links to folders and out of the root, other kinds of files and other suffixes are
    reported. The folder need not exist. Names are a prefix and the path below the root.
    """
    start, skipped, real_root = os.path.join(root, folder), len(root.rstrip(os.sep)) + 1, os.path.realpath(root)

    def name_of(path: str) -> str:
        return prefix + escape_line(path[skipped:])

    def unreadable(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # never made, or removed meanwhile
            findings.error(name_of(str(error.filename)), f"cannot be read: {error.strerror or error}", "unreadable")

    if os.path.lexists(start) and (os.path.islink(start) or not os.path.isdir(start)):
        findings.error(name_of(start), "is not a folder, so nothing is read from it; put a folder here", "no-folder")
        return []
    found = []
    for entry in _entries(start, unreadable):
        name = name_of(entry.path)
        try:
            if problem := _kind_problem(entry, real_root):
                findings.error(name, *problem)
            elif name.endswith(suffix):
                status = entry.stat()
                found.append(DataFile(entry.path, name, status.st_size, status.st_mtime_ns, status.st_ino))
            else:
                message = f"is not read because its name does not end in {suffix}; rename or remove it"
                findings.warning(name, message, OTHER_SUFFIX)
        except OSError as error:
            unreadable(error)
    return sorted(found, key=lambda file: file.name)


def _entries(folder: str, on_error: Callable[[OSError], object]) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder but folders and hidden entries; no link is followed."""
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as scanned:
                entries = sorted((entry for entry in scanned if entry.name[0] != "."), key=lambda entry: entry.name)
        except OSError as error:
            on_error(error)
            continue
        below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        folders += reversed(below)
        yield from (entry for entry in entries if not entry.is_dir(follow_symlinks=False))


def _kind_problem(entry: os.DirEntry[str], real_root: str) -> tuple[str, str] | None:
    """The message and the code for what is no file, or a link that is not followed."""
    if entry.is_symlink():
        if not is_below(os.path.realpath(entry.path), real_root):
            return "is a link that leads out of the data set; copy what it points to instead", "link-out"
        if not os.path.exists(entry.path):
            return "is a link to nothing or to itself; remove it", "link-to-nothing"
        if entry.is_dir():
            return "is a link to a folder, which is not followed; move the folder here", "link-to-folder"
    if not entry.is_file():
        return "is not a regular file (a pipe, socket or device); remove it", "no-file"
    return None


def is_below(path: str, root: str) -> bool:
    """Whether a resolved path lies below a resolved root."""
    return path.startswith(root.rstrip(os.sep) + os.sep)


def list_data_files(root: str, folders: Mapping[str, str]) -> tuple[dict[str, list[DataFile]], list[Problem]]:
    """The regular files below folders of a data set, and the problems of everything else; the suffix by folder."""
    findings = Findings()
    files = {
        folder: list_files(root, folder, suffix, findings, prefix=f"{root}/") for folder, suffix in folders.items()
    }
    return files, [problem for problem in findings.problems if problem.code != OTHER_SUFFIX]


def missing_data(root: str) -> Problem:
    """The problem of a folder without records, which names the data set that was probably meant."""
    if any(os.path.lexists(os.path.join(root, folder)) for folder in FOLDERS):
        problem = "has no definition, solution, workload or trace"
    else:
        problem = f"is no data set: it has none of the folders {', '.join(FOLDERS)}"
    meant = _meant(Path(os.path.realpath(root)), Path(root))
    remedy = f"pass the folder that has {DEFINITIONS}/ in it"
    if meant:
        remedy = f"did you mean {' or '.join(repr(path) for path in meant)}?"
    return Problem(root, "$", f"{problem}; {remedy}", code="no-data-set")


def _meant(real: Path, root: Path) -> list[str]:
    """The data set that a folder is a part of, or the first data sets right below it."""
    for above in real.parents:
        if (above / DEFINITIONS).is_dir() and real.relative_to(above).parts[0] in {*FOLDERS, "blob"}:
            return [str(above)]
    return [str(found.parent) for found in sorted(root.glob(f"[!.]*/{DEFINITIONS}"))[:_MAX_SUGGESTIONS]]


R = TypeVar("R", bound=Record)
Upgrade = Callable[[Any, type], Any]

_BUFFER_BYTES = 1 << 18
"""Buffer of a file of lines; with the default of 8 KiB, loading a set takes 5 % longer."""
LFS_POINTER = b"version https://git-lfs"

_LFS_MESSAGE = "is a Git LFS pointer and not the file itself; run 'git lfs pull' in the data set"
_TORN_MESSAGE = (
    "the last line is torn (incomplete JSON, no newline: its writer was stopped); readers skip it; remove the line"
)


def read_json(file: DataFile, cls: type[R], findings: Findings, upgrade: Upgrade | None = None) -> R | None:
    """Read the record of a JSON file and report every problem; None if it holds no valid record."""
    kind = cls.__name__.lower()
    if file.size_bytes > MAX_RECORD_BYTES:
        findings.error(file.name, _too_large("file"), "size")
        return None
    try:
        text = read_regular(file.path, MAX_RECORD_BYTES)
    except OSError as error:
        findings.error(file.name, f"cannot be read: {error.strerror or error}", "unreadable")
        return None
    if not text.strip():
        findings.error(file.name, f"is empty; write a {kind} or remove the file", "empty")
        return None
    if text.startswith(LFS_POINTER):
        findings.error(file.name, _LFS_MESSAGE, "git-lfs")
        return None
    return parse_record(text, cls, file.name, findings, upgrade)


def parse_record(text: bytes, cls: type[R], place: str, findings: Findings, upgrade: Upgrade | None = None) -> R | None:
    """Parse one JSON text and report every problem, also misspelt keys; None if it is not valid.

    A line that does not end with a newline may be torn. `upgrade` makes the plain objects of legacy records current.
    """
    try:
        record: R = canonical_parser(cls)(text)
        return record
    except Exception:  # noqa: BLE001 the second converter decides, and explains
        plain: Any = None
    try:
        plain = decode(text, cls.__name__, source=place)
        if upgrade is not None:
            plain = upgrade(plain, cls)
        record = structure(plain, cls, source=place)
    except InvalidRecord as error:
        if plain is None and ".jsonl:" in place and not text.endswith(b"\n"):
            findings.error(place, _TORN_MESSAGE, "torn-line")
        else:
            findings.add(*error.problems)
        return None
    for path, key, field in find_misspellings(record):
        message = f"has the unknown key {key!r}, which has no effect; did you mean {field!r}?"
        findings.warning(place, message, MISSPELT_CODE, path)
    return record


def read_lines(file: DataFile, findings: Findings) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a JSON Lines file that hold something, with their numbers, one at a time.

    Reading stops behind the size that the file had when it was found. What makes the rest of the file unreadable is
    reported.
    """
    is_empty = True
    left = file.size_bytes
    try:
        with open_regular(file.path, _BUFFER_BYTES) as handle:
            number = 0
            while left > 0 and (line := handle.readline(MAX_RECORD_BYTES + 1)):
                number, left = number + 1, left - len(line)
                if number == 1 and line.startswith(LFS_POINTER):
                    findings.error(file.name, _LFS_MESSAGE, "git-lfs")
                    return
                if len(line) > MAX_RECORD_BYTES:
                    findings.error(f"{file.name}:{number}", f"{_too_large('line')}; the rest is not read", "size")
                    return
                if not line.isspace():
                    is_empty = False
                    yield number, line
    except OSError as error:
        findings.error(file.name, f"cannot be read: {error.strerror or error}", "unreadable")
        return
    if is_empty:
        findings.warning(file.name, "holds no record; remove the file", "empty")


def read_traces(file: DataFile, findings: Findings, upgrade: Upgrade | None = None) -> Iterator[tuple[int, Trace]]:
    """Yield the good traces of a file with their line numbers and report every problem of the others."""
    for number, line in read_lines(file, findings):
        if (trace := parse_record(line, Trace, f"{file.name}:{number}", findings, upgrade)) is not None:
            yield number, trace


def _too_large(what: str) -> str:
    return f"the {what} is larger than {MAX_RECORD_BYTES >> 20} MiB, the most for a record; store tensors as blobs"


# -- names of definitions and solutions ---------------------------------------------------------------


@attrs.frozen
class NamedFile:
    """A file of a definition or a solution, with the names that it states."""

    name: str
    definition: str
    author: str
    file: DataFile


class _Header(msgspec.Struct):
    name: str
    definition: str | None = None
    author: str | None = None


_decode_header = msgspec.json.Decoder(_Header).decode


def named_files(files: Iterable[DataFile], kind: str, findings: Findings) -> dict[str, list[NamedFile]]:
    """The files by the names at their top level; files that share a name are reported.

    A bad file, which access reports, has the names of its path.
    """
    named: dict[str, list[NamedFile]] = {}
    for file in files:
        try:
            header = _decode_header(read_regular(file.path, MAX_RECORD_BYTES))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            header = _Header("")
        name, author = header.name or file.stem, header.author
        if not author or component_problem(author):  # paths of traces contain it
            author = _folder(file, 3)
        named.setdefault(name, []).append(NamedFile(name, header.definition or _folder(file, 1), author, file))
    for name, group in named.items():
        for one in group if len(group) > 1 else ():
            others = ", ".join(other.file.name for other in group if other is not one)
            message = f"two {kind}s are named {name!r}, so neither is used ({others}); rename or remove one"
            findings.error(one.file.name, message, "duplicate-name", "$.name")
    return named


def _folder(file: DataFile, level: int) -> str:
    """The name of a folder above a file."""
    parts = os.path.abspath(file.path).split(os.sep)
    return parts[-1 - level] if len(parts) > level else ""


# -- single files ------------------------------------------------------------------------------------


def save_json_file(obj: Record, path: str | os.PathLike[str]) -> None:
    """Write a record to a file, whole or not at all."""
    atomic_write(path, (format_json(obj, indent=2) + "\n").encode(), durable=True)


def load_json_file(cls: type[R], path: str | os.PathLike[str]) -> R:
    """Read a record from a file.

    Raises:
        InvalidRecord: The file holds no such record.
        OSError: The file cannot be read: it is missing, is not a regular file, or is larger than 64 MiB.
    """
    return parse_json(read_regular(path, MAX_RECORD_BYTES), cls, source=os.fspath(path))


def save_jsonl_file(objs: Iterable[Record], path: str | os.PathLike[str]) -> None:
    """Write records to a JSON Lines file, whole or not at all."""
    atomic_write(path, "".join(format_json(obj) + "\n" for obj in objs).encode(), durable=True)


def load_jsonl_file(cls: type[R], path: str | os.PathLike[str]) -> list[R]:
    """Read every record of a JSON Lines file.

    Raises:
        InvalidRecord: A line is not such a record; holds the problems of all lines.
        OSError: The file cannot be read.
    """
    findings = Findings()
    file = DataFile(os.fspath(path), os.fspath(path), os.stat(path).st_size)
    found = [parse_record(text, cls, f"{path}:{number}", findings) for number, text in read_lines(file, findings)]
    if findings.errors:
        raise InvalidRecord(f"list of {cls.__name__} records", tuple(findings.errors))
    return [record for record in found if record is not None]


def append_jsonl_file(objs: Iterable[Record], path: str | os.PathLike[str]) -> None:
    """Append records to a JSON Lines file; they are durable and whole when this returns.

    Raises:
        OSError: Nothing was appended.
    """
    if lines := [format_json(obj).encode() for obj in objs]:
        append_new_lines(os.fspath(path), lambda _: lines)
