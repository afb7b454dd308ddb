"""Reader of data set files: records and lines, and every problem of a file, its text and its records.

The store, validation and migration use it. The functions that load and save single files are public.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Generic, TypeVar

import attrs
import msgspec

from ._legacy import LogReader, legacy_warnings, upgrade
from ._record import Record, component_problem
from .appending import append_new_lines, rewrite_file
from .codec import MAX_RECORD_BYTES, decode, format_json, parse_json, structure, trace_parser
from .data_files import LEGACY_WORKLOADS, DataFile
from .errors import InvalidRecord
from .files import atomic_write, open_regular, read_regular
from .problems import Findings, Misspelling, find_misspellings, misspelling_warnings
from .trace import Trace

R = TypeVar("R", bound=Record)

_BUFFER_BYTES = 1 << 18
"""Buffer of a file of lines; with the default of 8 KiB, loading a set takes 5 % longer."""
BOM = b"\xef\xbb\xbf"
LFS_POINTER = b"version https://git-lfs"

_LFS_MESSAGE = "is a Git LFS pointer and not the file itself; run 'git lfs pull' in the data set"
_BOM_MESSAGE = "starts with a byte order mark, which JSON does not allow; save the file as UTF-8 without it"
_TORN_MESSAGE = (
    "the last line is torn (incomplete JSON, no newline: its writer was stopped); readers skip it; remove the line"
)


@attrs.frozen
class Parsed(Generic[R]):
    """The result of parsing one JSON text."""

    record: R | None = None
    """None if the text holds no valid record."""
    plain: Any = None
    """The plain objects in the current schema; None if the text is not JSON."""
    changes: tuple[str, ...] = ()
    """Changes that made a legacy record current."""
    misspellings: tuple[Misspelling, ...] = ()
    """Unknown keys that look like misspelt fields."""
    text: bytes = b""
    """The JSON without a byte order mark."""


def read_json(
    file: DataFile,
    cls: type[R],
    findings: Findings,
    read_log: LogReader | None = None,
    *,
    checks_keys: bool = False,
) -> Parsed[R]:
    """Read the record of a JSON file and report every problem."""
    text = _read_text(file, cls, findings)
    if text is None:
        return Parsed()
    parsed = parse_record(text, cls, file.name, findings, read_log, checks_keys=checks_keys)
    findings.add(*legacy_warnings(file.name, dict.fromkeys(parsed.changes, 1)))
    findings.add(*misspelling_warnings(file.name, dict.fromkeys(parsed.misspellings, 1)))
    return parsed


def parse_record(
    text: bytes,
    cls: type[R],
    place: str,
    findings: Findings,
    read_log: LogReader | None = None,
    *,
    checks_keys: bool = False,
) -> Parsed[R]:
    """Parse one JSON text of the current schema or a legacy one and report every problem.

    Args:
        text: The JSON.
        cls: The class of the record.
        place: What to call the text in problems.
        findings: Where problems go.
        read_log: Reads the log files that legacy traces name.
        checks_keys: Whether keys that occur twice in an object are reported, which takes as long again.
    """
    try:
        plain = decode(text, cls.__name__, source=place)
    except InvalidRecord as error:
        findings.add(*error.problems)
        return Parsed()
    if checks_keys:
        _report_repeated_keys(text, place, findings)
    current, changes = upgrade(plain, cls, read_log)
    record: R | None
    try:
        record = structure(current, cls, source=place)
    except InvalidRecord as error:
        findings.add(*error.problems)
        record = None
    misspellings = () if record is None else tuple(find_misspellings(record, current))
    return Parsed(record, current, tuple(changes), misspellings, text)


def parse_line(
    line: bytes,
    cls: type[R],
    place: str,
    findings: Findings,
    read_log: LogReader | None = None,
    *,
    checks_keys: bool = False,
) -> Parsed[R]:
    """As `parse_record`, of a line with its newline; a last line without one may be torn."""
    if not line.endswith(b"\n") and not _is_json(line):
        findings.error(place, _TORN_MESSAGE, "torn-line")
        return Parsed()
    return parse_record(line, cls, place, findings, read_log, checks_keys=checks_keys)


def read_lines(file: DataFile, findings: Findings) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a JSON Lines file that hold something, with their numbers, one at a time.

    Reading stops at the size that the file had when it was found, or at the end of a line that was being appended
    then. What makes the whole file or a line unreadable is reported and left out.
    """
    is_empty = True
    left = file.size_bytes
    try:
        with open_regular(file.path, _BUFFER_BYTES) as handle:
            start = handle.read(len(LFS_POINTER))
            if start == LFS_POINTER:
                findings.error(file.name, _LFS_MESSAGE, "git-lfs")
                return
            if start.startswith(BOM):
                findings.error(f"{file.name}:1", _BOM_MESSAGE, "bom")
                left -= len(BOM)
            handle.seek(file.size_bytes - left)
            for number, (line, size) in enumerate(_bounded_lines(handle, left), start=1):
                if size > MAX_RECORD_BYTES:
                    findings.error(f"{file.name}:{number}", _too_large("line", size), "size")
                elif line.isspace():
                    continue
                else:
                    yield number, line
                is_empty = False
    except OSError as error:
        findings.error(file.name, f"cannot be read: {error.strerror or error}", "unreadable")
        return
    if is_empty:
        findings.warning(file.name, "holds no record; remove the file", "empty")


def _bounded_lines(handle: BinaryIO, left: int) -> Iterator[tuple[bytes, int]]:
    """The lines that begin in the next bytes of a file, with their sizes; of too large ones the start alone."""
    readline, limit = handle.readline, MAX_RECORD_BYTES + 1
    while left > 0 and (line := readline(limit)):
        size = len(line)
        if size == limit:
            while not line.endswith(b"\n") and (part := readline(1 << 20)):
                line, size = part, size + len(part)
        left -= size
        if left < 0 and not line.endswith(b"\n"):
            line = line[:left]
        yield line, size


class TraceReader:
    """Reads traces from JSON Lines files.

    Args:
        checks_keys: Whether keys that occur twice in an object are reported.
    """

    def __init__(self, *, checks_keys: bool = False) -> None:
        self._checks_keys = checks_keys

    def read(self, file: DataFile, findings: Findings) -> Iterator[tuple[int, Trace]]:
        """Yield the good traces of a file with their line numbers and report every problem of the others."""
        changes: Counter[str] = Counter()
        misspellings: Counter[Misspelling] = Counter()
        parse = trace_parser()
        for number, line in read_lines(file, findings):
            try:
                trace = parse(line)
            except Exception:  # noqa: BLE001 the full parser decides, and explains
                place = f"{file.name}:{number}"
                parsed = parse_line(line, Trace, place, findings, checks_keys=self._checks_keys)
                changes.update(parsed.changes)
                misspellings.update(parsed.misspellings)
                if parsed.record is not None:
                    yield number, parsed.record
                continue
            if self._checks_keys:
                _report_repeated_keys(line, f"{file.name}:{number}", findings)
            yield number, trace
        findings.add(*legacy_warnings(file.name, changes))
        findings.add(*misspelling_warnings(file.name, misspellings))


def _report_repeated_keys(text: bytes, place: str, findings: Findings) -> None:
    """Report keys that an object has more than once, of which decoding keeps the last; the text must be JSON."""
    repeated: set[str] = set()

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) != len(pairs):
            repeated.update(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)

    json.loads(text, object_pairs_hook=check)
    for key in sorted(repeated):
        message = f"has {key!r} more than once in an object, and readers take the last; remove the others"
        findings.error(place, message, "duplicate-key")


def _read_text(file: DataFile, cls: type[Record], findings: Findings) -> bytes | None:
    """The content of a JSON file; None if it holds no text, which is reported."""
    kind = cls.__name__.lower()
    if file.size_bytes > MAX_RECORD_BYTES:
        findings.error(file.name, _too_large("file", file.size_bytes), "size")
        return None
    try:
        with open_regular(file.path) as handle:
            data = handle.read(MAX_RECORD_BYTES + 1)
    except OSError as error:
        findings.error(file.name, f"cannot be read: {error.strerror or error}", "unreadable")
        return None
    if not data.strip():
        findings.error(file.name, f"is empty; write a {kind} or remove the file", "empty")
        return None
    if data.startswith(LFS_POINTER):
        findings.error(file.name, _LFS_MESSAGE, "git-lfs")
        return None
    if data.startswith(BOM):
        findings.error(file.name, _BOM_MESSAGE, "bom")
    return data.removeprefix(BOM)


def _is_json(line: bytes) -> bool:
    try:
        decode(line, "record", source="")
    except InvalidRecord:
        return False
    return True


def _too_large(what: str, size_bytes: int) -> str:
    limit = MAX_RECORD_BYTES >> 20
    return f"the {what} has {size_bytes >> 20} MiB, and a record at most {limit} MiB; store tensors as blobs"


def holds_legacy_workloads(file: DataFile, prefix: str) -> bool:
    """Whether a file below ``traces/workloads/`` holds workloads, not traces of an author of that name.

    Args:
        file: The file.
        prefix: What precedes the path below the root in the file's name.
    """
    if not file.name.startswith(prefix + LEGACY_WORKLOADS):
        return False
    with contextlib.suppress(OSError), open_regular(file.path) as lines:
        while line := lines.readline(MAX_RECORD_BYTES):
            try:
                plain = json.loads(line)
            except (ValueError, RecursionError):
                continue
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
    found = [parse_line(line, cls, f"{path}:{number}", findings).record for number, line in read_lines(file, findings)]
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


def rewrite_jsonl_file(path: str | os.PathLike[str], choose: Callable[[Sequence[bytes]], Iterable[bytes]]) -> bool:
    """Keep some lines of a JSON Lines file to which other processes may be appending.

    A process that is killed meanwhile leaves the old file or the new one.

    Args:
        path: The file.
        choose: Given the lines, without their newlines, under the lock that appenders take: returns those that stay.

    Returns:
        Whether the file changed; the change is durable.

    Raises:
        OSError: It could not be rewritten and is unchanged.
    """
    return rewrite_file(os.fspath(path), lambda data: b"\n".join(choose(data.split(b"\n"))))
