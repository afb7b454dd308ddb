"""Reader of data set files: records, and every problem of a file, its text and its records.

The store, validation and migration use it. Lines of traces take the fast path of `_trace_parser`
first; after a miss the slow path decides whether the line is valid and explains every problem.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import attrs

from ._decoding import decode, structure
from ._layout import DataFile
from ._legacy import LogReader, legacy_warnings, upgrade
from ._limits import MAX_LINE_BYTES, MAX_RECORD_BYTES
from ._record import Record
from ._report import Findings
from ._trace_lines import FastPathMiss
from ._trace_parser import trace_parser
from ._unknown_keys import Misspelling, find_misspellings, misspelling_warnings
from .errors import InvalidRecord
from .regular_files import open_regular
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
    misspellings = () if record is None else tuple(find_misspellings(record))
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
    left, limit = file.size_bytes, MAX_RECORD_BYTES + 1
    number = 0
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
            readline = handle.readline
            while left > 0 and (line := readline(limit)):
                number += 1
                size = len(line)
                left -= size
                if left < 0 and not line.endswith(b"\n"):
                    line = line[:left]
                if size == limit:
                    rest = 0 if line.endswith(b"\n") else _skip_line(readline, min(left, MAX_LINE_BYTES))
                    left -= rest
                    findings.error(f"{file.name}:{number}", _too_large("line", size + rest), "size")
                    is_empty = False
                    if rest >= MAX_LINE_BYTES:
                        findings.error(file.name, f"is not read after line {number}; remove that line", "size")
                        return
                elif not line.isspace():
                    is_empty = False
                    yield number, line
    except OSError as error:
        findings.error(file.name, f"cannot be read: {error.strerror or error}", "unreadable")
        return
    if is_empty:
        findings.warning(file.name, "holds no record; remove the file", "empty")


class TraceReader:
    """Reads traces from JSON Lines files; records that lines share are kept between files.

    Args:
        checks_keys: Whether keys that occur twice in an object are reported.
    """

    def __init__(self, *, checks_keys: bool = False) -> None:
        self._checks_keys = checks_keys
        self._parse: Callable[[bytes], Trace] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return TraceReader, ()

    def read(self, file: DataFile, findings: Findings) -> Iterator[tuple[int, Trace]]:
        """Yield the good traces of a file with their line numbers and report every problem of the others."""
        if self._parse is None:
            self._parse = trace_parser()
        parse = self._parse
        changes: Counter[str] = Counter()
        misspellings: Counter[Misspelling] = Counter()
        for number, line in read_lines(file, findings):
            try:
                trace = parse(line)
            except FastPathMiss:
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
    try:
        _find_repeats(text.decode())
    except _Repeated:
        for path in _repeated(json.loads(text, object_pairs_hook=_Pairs), "$"):
            message = "occurs more than once in its object, and readers take the last; remove the others"
            findings.error(place, message, "duplicate-key", path)


def child_path(path: str, key: str) -> str:
    """The JSON path of a key."""
    return f"{path}.{key}" if key.isidentifier() else f"{path}[{key!r}]"


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


class _Repeated(Exception):
    """An object has a key twice."""


def _raise_on_repeats(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise _Repeated


_find_repeats = json.JSONDecoder(object_pairs_hook=_raise_on_repeats).decode


class _Pairs(list[tuple[str, Any]]):
    """An object with all its keys."""


def _repeated(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Pairs):
        seen: Counter[str] = Counter()
        for key, item in value:
            here = child_path(path, key)
            seen[key] += 1
            if seen[key] == 2:
                yield here
            yield from _repeated(item, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _repeated(item, f"{path}[{index}]")


def _is_json(line: bytes) -> bool:
    try:
        decode(line, "record", source="")
    except InvalidRecord:
        return False
    return True


def _skip_line(readline: Callable[[int], bytes], limit_bytes: int) -> int:
    """Read to the end of a line, or to a limit, without keeping it; returns how many bytes that were."""
    size = 0
    while size < limit_bytes and (part := readline(1 << 20)):
        size += len(part)
        if part.endswith(b"\n"):
            break
    return size


def _too_large(what: str, size_bytes: int) -> str:
    limit = MAX_RECORD_BYTES >> 20
    return f"the {what} has {size_bytes >> 20} MiB, and a record at most {limit} MiB; store tensors as blobs"
