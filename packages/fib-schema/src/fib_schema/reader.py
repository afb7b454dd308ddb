"""Reader of data set files: records and lines, and every problem of a file, its text and its records.

The store, validation and migration use it. The functions that load and save single files are public.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import attrs
import msgspec

from ._legacy import LogReader, legacy_warnings, upgrade
from ._record import Record, component_problem
from .appending import append_new_lines
from .codec import MAX_RECORD_BYTES, canonical_parser, decode, format_json, parse_json, structure
from .data_files import LEGACY_WORKLOADS, DataFile
from .errors import InvalidRecord
from .files import atomic_write, open_regular, read_regular
from .problems import Findings, Misspelling, find_misspellings, misspelling_warnings
from .trace import Trace

R = TypeVar("R", bound=Record)

_BUFFER_BYTES = 1 << 18
"""Buffer of a file of lines; with the default of 8 KiB, loading a set takes 5 % longer."""
LFS_POINTER = b"version https://git-lfs"

_LFS_MESSAGE = "is a Git LFS pointer and not the file itself; run 'git lfs pull' in the data set"
_TORN_MESSAGE = (
    "the last line is torn (incomplete JSON, no newline: its writer was stopped); readers skip it; remove the line"
)


@attrs.frozen
class Parsed(Generic[R]):
    """The result of parsing one JSON text."""

    record: R | None = None
    """None if the text holds no valid record."""
    plain: Any = None
    """The plain objects in the current schema; None if the text is canonical or no JSON."""
    changes: tuple[str, ...] = ()
    """Changes that made a legacy record current."""
    text: bytes = b""

    @property
    def misspellings(self) -> tuple[Misspelling, ...]:
        """Unknown keys that look like misspelt fields; a canonical record has none."""
        return () if self.record is None or self.plain is None else tuple(find_misspellings(self.record, self.plain))


def read_json(file: DataFile, cls: type[R], findings: Findings, read_log: LogReader | None = None) -> Parsed[R]:
    """Read the record of a JSON file and report every problem."""
    kind = cls.__name__.lower()
    if file.size_bytes > MAX_RECORD_BYTES:
        findings.error(file.name, _too_large("file"), "size")
        return Parsed()
    try:
        text = read_regular(file.path, MAX_RECORD_BYTES)
    except OSError as error:
        findings.error(file.name, f"cannot be read: {error.strerror or error}", "unreadable")
        return Parsed()
    if not text.strip():
        findings.error(file.name, f"is empty; write a {kind} or remove the file", "empty")
        return Parsed()
    if text.startswith(LFS_POINTER):
        findings.error(file.name, _LFS_MESSAGE, "git-lfs")
        return Parsed()
    parsed = parse_record(text, cls, file.name, findings, read_log)
    findings.add(*legacy_warnings(file.name, dict.fromkeys(parsed.changes, 1)))
    findings.add(*misspelling_warnings(file.name, dict.fromkeys(parsed.misspellings, 1)))
    return parsed


def parse_record(
    text: bytes, cls: type[R], place: str, findings: Findings, read_log: LogReader | None = None
) -> Parsed[R]:
    """Parse one JSON text of the current schema or a legacy one and report every problem.

    Args:
        text: The JSON; a line that does not end with a newline may be torn.
        cls: The class of the record.
        place: What to call the text in problems.
        findings: Where problems go.
        read_log: Reads the log files that legacy traces name.
    """
    try:
        return Parsed(canonical_parser(cls)(text), text=text)
    except Exception:  # noqa: BLE001 the second converter decides, and explains
        plain: Any = None
        changes: list[str] = []
    try:
        plain, changes = upgrade(decode(text, cls.__name__, source=place), cls, read_log)
        return Parsed(structure(plain, cls, source=place), plain, tuple(changes), text)
    except InvalidRecord as error:
        is_torn = plain is None and ".jsonl:" in place and not text.endswith(b"\n")
        if is_torn:
            findings.error(place, _TORN_MESSAGE, "torn-line")
        else:
            findings.add(*error.problems)
        return Parsed(None, plain, tuple(changes), text)


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


def read_traces(file: DataFile, findings: Findings) -> Iterator[tuple[int, Trace]]:
    """Yield the good traces of a file with their line numbers and report every problem of the others."""
    changes: Counter[str] = Counter()
    misspellings: Counter[Misspelling] = Counter()
    parse = canonical_parser(Trace)
    for number, line in read_lines(file, findings):
        try:
            trace = parse(line)
        except Exception:  # noqa: BLE001 the second converter decides, and explains
            parsed = parse_record(line, Trace, f"{file.name}:{number}", findings)
            changes.update(parsed.changes)
            misspellings.update(parsed.misspellings)
            if parsed.record is None:
                continue
            trace = parsed.record
        yield number, trace
    findings.add(*legacy_warnings(file.name, changes))
    findings.add(*misspelling_warnings(file.name, misspellings))


def _too_large(what: str) -> str:
    return f"the {what} is larger than {MAX_RECORD_BYTES >> 20} MiB, the most for a record; store tensors as blobs"


def holds_legacy_workloads(file: DataFile, prefix: str) -> bool:
    """Whether a file below ``traces/workloads/`` holds workloads, not traces of an author of that name.

    Args:
        file: The file.
        prefix: What precedes the path below the root in the file's name.
    """
    if not file.name.startswith(prefix + LEGACY_WORKLOADS):
        return False
    for _, line in read_lines(file, Findings()):
        with contextlib.suppress(InvalidRecord):
            plain = decode(line, "Trace", source=file.name)
            return isinstance(plain, dict) and plain.get("evaluation") is None
    return False


# -- names of definitions and solutions ---------------------------------------------------------------


def definition_names(files: Iterable[DataFile], findings: Findings) -> dict[str, DataFile]:
    """Definition files by the name that each holds."""
    headers = [(_header(file), file) for file in files]
    return {name: file for name, _, file in _unambiguous(headers, "definition", findings)}


@attrs.frozen
class SolutionNames:
    """Names, definitions and authors of solutions."""

    files: dict[str, DataFile]
    """Files by name of the record."""
    of_definition: dict[str, tuple[str, ...]]
    owners: dict[str, tuple[str, str]]
    """The definition and the author, by solution."""


def solution_names(files: Iterable[DataFile], findings: Findings) -> SolutionNames:
    """The names, definitions and authors that solution files state."""
    names: dict[str, DataFile] = {}
    groups: dict[str, list[str]] = {}
    owners: dict[str, tuple[str, str]] = {}
    for name, header, file in _unambiguous([(_header(file), file) for file in files], "solution", findings):
        names[name] = file
        definition = header.definition or _folder(file, 1)
        groups.setdefault(definition, []).append(name)
        owners[name] = definition, _author(header.author, file)
    of_definition = {definition: tuple(group) for definition, group in groups.items()}
    return SolutionNames(names, of_definition, owners)


def _author(stated: str | None, file: DataFile) -> str:
    """The author that a solution states, or the folder it lies in if that is not a name: traces' paths contain it."""
    return stated if stated and component_problem(stated) is None else _folder(file, 3)


class _Header(msgspec.Struct):
    name: str
    definition: str | None = None
    author: str | None = None


_decode_header = msgspec.json.Decoder(_Header).decode


def _header(file: DataFile) -> _Header:
    """The names at a file's top level; none if the file is bad, which access reports."""
    try:
        return _decode_header(read_regular(file.path, MAX_RECORD_BYTES))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Header("")


def _unambiguous(
    headers: list[tuple[_Header, DataFile]], kind: str, findings: Findings
) -> Iterator[tuple[str, _Header, DataFile]]:
    """Yield the names that one file states; report the others."""
    named: dict[str, list[tuple[_Header, DataFile]]] = {}
    for header, file in headers:
        named.setdefault(header.name or file.stem, []).append((header, file))
    for name, group in named.items():
        if len(group) == 1:
            yield name, *group[0]
            continue
        for _, file in group:
            others = ", ".join(other.name for _, other in group if other is not file)
            message = f"two {kind}s are named {name!r}, so neither is used ({others}); rename or remove one"
            findings.error(file.name, message, "duplicate-name", "$.name")


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
    found = [
        parse_record(text, cls, f"{path}:{number}", findings).record for number, text in read_lines(file, findings)
    ]
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
