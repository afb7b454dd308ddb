"""JSON for the model classes: strict when read, lossless when written.

Decoding goes bytes -> plain objects (msgspec, which is fast and refuses nothing that it should
not) -> records (cattrs with strict hooks: 4.7 is no integer, 3 is no string, ``true`` is no
number). Both libraries are imported on first use, so that importing fib_schema stays cheap.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import attrs

from ._durable import append_lines, rewrite_file
from ._fast_traces import NotOrdinary
from ._older import upgrade
from ._record import FrozenDict, Record
from .definition import AxisConst, AxisVar
from .errors import InvalidRecord, Problem
from .files import atomic_write
from .workload import RandomInput, SafetensorsInput, ScalarInput

R = TypeVar("R", bound=Record)

_TAGS: Mapping[type, str] = MappingProxyType({
    AxisConst: "const",
    AxisVar: "var",
    RandomInput: "random",
    ScalarInput: "scalar",
    SafetensorsInput: "safetensors",
})  # fmt: skip
_ALWAYS_WRITTEN = frozenset({
    "solution", "evaluation", "shape", "log", "correctness", "performance", "latency_ms",
    "reference_latency_ms", "speedup_factor", "max_relative_error", "max_absolute_error",
    "dependencies", "destination_passing_style",
})  # fmt: skip
"""Fields that a record made in memory spells out even where they have their default."""
_BOOKKEEPING = frozenset({"unknown_fields", "source_keys"})


def parse_json(text: bytes | str, cls: type[R], *, source: str = "<memory>") -> R:
    """Parse one JSON text into a record.

    Raises:
        InvalidRecord: The text is no JSON or no such record; holds every problem with its path.
    """
    return structure(decode(text, cls.__name__, source=source), cls, source=source)


def parse_upgraded(text: bytes | str, cls: type[R], *, source: str) -> tuple[R, list[str]]:
    """Parse one JSON text of the current schema or an older one into a record.

    Returns:
        The record, and what was changed to make it current.

    Raises:
        InvalidRecord: As `parse_json`.
    """
    plain, changes = upgrade(decode(text, cls.__name__, source=source), cls)
    return structure(plain, cls, source=source), changes


def format_json(record: Record, *, indent: int | None = None) -> str:
    """Format a record as JSON; fields keep the order and presence that their source had."""
    encode = _COMPACT if indent is None else json.JSONEncoder(indent=indent, ensure_ascii=False).encode
    return encode(to_plain(record))


_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def save_json_file(obj: Record, path: str | os.PathLike[str]) -> None:
    """Write a record to a file, whole or not at all."""
    atomic_write(path, (format_json(obj, indent=2) + "\n").encode(), durable=True)


def load_json_file(cls: type[R], path: str | os.PathLike[str]) -> R:
    """Read a record from a file.

    Raises:
        InvalidRecord: The file holds no such record.
        OSError: The file cannot be read.
    """
    return parse_json(Path(path).read_bytes(), cls, source=os.fspath(path))


def save_jsonl_file(objs: Iterable[Record], path: str | os.PathLike[str]) -> None:
    """Write records to a JSON Lines file, whole or not at all."""
    atomic_write(path, "".join(format_json(obj) + "\n" for obj in objs).encode(), durable=True)


def load_jsonl_file(cls: type[R], path: str | os.PathLike[str]) -> list[R]:
    """Read every record of a JSON Lines file.

    Raises:
        InvalidRecord: A line is no such record; holds the problems of all lines.
        OSError: The file cannot be read.
    """
    problems: list[Problem] = []
    records = list(parse_lines(Path(path).read_bytes(), cls, os.fspath(path), problems))
    if problems:
        raise InvalidRecord(f"list of {cls.__name__} records", tuple(problems))
    return records


def append_jsonl_file(objs: Iterable[Record], path: str | os.PathLike[str]) -> None:
    """Append records to a JSON Lines file; when this returns they are on the disk, whole.

    Raises:
        OSError: Nothing was appended.
    """
    if lines := [format_json(obj).encode() for obj in objs]:
        append_lines({os.fspath(path): lines})


def rewrite_jsonl_file(path: str | os.PathLike[str], choose: Callable[[Sequence[bytes]], Iterable[bytes]]) -> bool:
    """Keep some of the lines of a JSON Lines file, which others may append to meanwhile.

    A process that is killed in between leaves the old file or the new one.

    Args:
        path: The file.
        choose: Given the lines, without their newlines, under the lock that appenders take: returns those that stay.

    Returns:
        Whether anything changed; it is on the disk then.

    Raises:
        OSError: It could not be rewritten, and holds what it held.
    """
    return rewrite_file(os.fspath(path), lambda data: b"\n".join(choose(data.split(b"\n"))))


def parse_lines(
    data: bytes,
    cls: type[R],
    source: str,
    problems: list[Problem],
    parse_ordinary: Callable[[bytes], R] | None = None,
    changes: Counter[str] | None = None,
) -> Iterator[R]:
    """Yield the good records of JSON Lines and collect what is wrong with the other lines.

    Args:
        data: The lines.
        cls: What each holds.
        source: What to call them in problems.
        problems: Where problems go.
        parse_ordinary: A fast parser that raises `NotOrdinary` where it is not sure.
        changes: Read lines of older schemas too, and count here what made them current.
    """
    is_torn = bool(data) and not data.endswith(b"\n")
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line or line.isspace():
            continue
        if parse_ordinary is not None:
            try:
                record = parse_ordinary(line)
            except NotOrdinary:
                pass  # the general decoder below decides
            else:
                yield record
                continue
        place = f"{source}:{number}"
        try:
            if changes is None:
                yield parse_json(line, cls, source=place)
            else:
                record, made = parse_upgraded(line, cls, source=place)
                changes.update(made)
                yield record
        except InvalidRecord as error:
            is_last = is_torn and number == len(lines)
            problems.extend([Problem(place, "$", _TORN)] if is_last else error.problems)


_TORN = "the last line is torn (incomplete JSON, no newline), for its writer was stopped; it is skipped"


def decode(text: bytes | str, kind: str, *, source: str) -> Any:
    """Decode JSON to plain objects; both spellings of NaN and infinity are read.

    Raises:
        InvalidRecord: The text is no JSON, is not UTF-8, or nests too deeply.
    """
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decode_slowly(text, kind, source)


def structure(plain: Any, cls: type[R], *, source: str = "<memory>") -> R:
    """Turn plain objects into a record.

    Raises:
        InvalidRecord: Holds every problem with its path.
    """
    from ._structure import problems_in, structure_record

    try:
        return structure_record(plain, cls)
    except (ValueError, TypeError, KeyError) as error:
        problems = problems_in(plain, cls, source)
        raise InvalidRecord(cls.__name__, tuple(problems)) from error


def to_plain(value: Any) -> Any:
    """Turn a record into plain objects for JSON; infinities and NaN of its fields become strings."""
    if not isinstance(value, Record):
        return _plain_field(value)
    cls: Any = type(value)  # mypy takes the hash of an unhashable record for that of its class
    order = _order(cls, value.source_keys)
    plain: dict[str, Any] = {}
    for key in order.written:
        if key in order.fields:
            plain[key] = _plain_field(getattr(value, key))
        elif key in value.unknown_fields:
            plain[key] = value.unknown_fields[key]
        elif key == "type" and type(value) in _TAGS:
            plain[key] = _TAGS[type(value)]
    for key, default in order.if_changed:
        item = getattr(value, key)
        if item != default:
            plain[key] = _plain_field(item)
    for key, item in value.unknown_fields.items():
        plain.setdefault(key, item)
    return plain


def _decode_slowly(text: bytes | str, kind: str, source: str) -> Any:
    """Decode with the standard library: it reads bare NaN and says where a text breaks off."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return json.loads(text)
    except UnicodeDecodeError as error:
        message = f"is not UTF-8: byte {error.start} is {text[error.start]!r}; save the file as UTF-8"
    except json.JSONDecodeError as error:
        message = f"is no JSON: {error.msg} at line {error.lineno} column {error.colno}"
    except RecursionError:
        message = "nests too deeply to be read"
    except ValueError as error:  # an integer of more digits than Python converts
        message = f"cannot be read: {error}"
    raise InvalidRecord(kind, (Problem(source, "$", message),))


@attrs.frozen
class _Order:
    """In which order a record's fields are written."""

    fields: frozenset[str]
    written: tuple[str, ...]
    """Keys that are written whatever they hold: those of the source, or those of a new record."""
    if_changed: tuple[tuple[str, Any], ...]
    """Other fields with their defaults: written if they hold something else."""


@lru_cache(maxsize=4096)
def _order(cls: type[Record], source_keys: tuple[str, ...] | None) -> _Order:
    fields = {f.name: f.default for f in attrs.fields(cls) if f.name not in _BOOKKEEPING}
    written = source_keys
    if written is None:
        tag = ("type",) if cls in _TAGS else ()
        always = (n for n, d in fields.items() if d is attrs.NOTHING or n in _ALWAYS_WRITTEN)
        written = (*tag, *always)
    rest = tuple((name, default) for name, default in fields.items() if name not in written)
    return _Order(frozenset(fields), written, rest)


def _plain_field(value: Any) -> Any:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is float:
        return value if math.isfinite(value) else _NON_FINITE[str(value)]
    if kind is FrozenDict:
        return {key: _plain_field(item) for key, item in value.items()}
    if isinstance(value, Record):
        return to_plain(value)
    if isinstance(value, Mapping):
        return {key: _plain_field(item) for key, item in value.items()}
    if isinstance(value, str):
        return str(value)
    return [_plain_field(item) for item in value]


_NON_FINITE: Mapping[str, str] = MappingProxyType({"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"})
