"""Reader of data set files: records and lines, and every problem of a file, its text and its records.

The store, validation and migration use it. The functions that load and save single files are public.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import attrs
import msgspec

from ._record import Record, component_problem
from .appending import append_new_lines
from .codec import MAX_RECORD_BYTES, canonical_parser, decode, format_json, parse_json, structure
from .data_files import DataFile
from .errors import InvalidRecord
from .files import atomic_write, open_regular, read_regular
from .problems import MISSPELT_CODE, Findings, find_misspellings
from .trace import Trace

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
