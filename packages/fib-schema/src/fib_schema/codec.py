"""JSON and JSON Lines files of records: strict when read, lossless when written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ._decoding import decode, may_be_too_deep, structure
from ._durable import append_new_lines, rewrite_file
from ._encoding import format_json, to_plain
from ._layout import DataFile
from ._legacy import upgrade
from ._limits import MAX_RECORD_BYTES
from ._reader import parse_line, read_lines
from ._record import Record
from ._report import Findings
from .errors import InvalidRecord
from .files import atomic_write
from .regular_files import read_regular

__all__ = [
    "MAX_RECORD_BYTES",
    "append_jsonl_file",
    "decode",
    "format_json",
    "load_json_file",
    "load_jsonl_file",
    "may_be_too_deep",
    "parse_json",
    "parse_upgraded",
    "rewrite_jsonl_file",
    "save_json_file",
    "save_jsonl_file",
    "structure",
    "to_plain",
]

R = TypeVar("R", bound=Record)


def parse_json(text: bytes | str, cls: type[R], *, source: str = "<memory>") -> R:
    """Parse one JSON text into a record.

    Raises:
        InvalidRecord: The text is not JSON or no such record; holds every problem with its path.
    """
    return structure(decode(text, cls.__name__, source=source), cls, source=source)


def parse_upgraded(text: bytes | str, cls: type[R], *, source: str) -> tuple[R, list[str]]:
    """Parse one JSON text of the current schema or a legacy one into a record.

    Returns:
        The record, and the changes that made it current.

    Raises:
        InvalidRecord: As `parse_json`.
    """
    plain, changes = upgrade(decode(text, cls.__name__, source=source), cls)
    return structure(plain, cls, source=source), changes


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
