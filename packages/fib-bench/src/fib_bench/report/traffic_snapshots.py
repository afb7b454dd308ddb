"""Snapshots of traffic counts: which of two files of one process is the later one.

A process that traces replaces its file in ``traffic/`` with larger counts, so copies of a data set that were made at
different times hold the same file with different counts. The later one has all counts of the earlier one, or larger
ones. Readers sum files, so that neither of two others may be left out in a merge.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from fib_schema.regular_files import read_regular
from fib_schema.traffic import MAX_FILE_BYTES

from .record_contents import parsed_json

_PROCESS = ("host", "pid")


def later_snapshot(first: Path, second: Path) -> Path | None:
    """The file that continues the counts of the other; None if neither does, or one of them is damaged.

    Raises:
        OSError: A file cannot be read.
    """
    contents = [parsed_json(read_regular(path, MAX_FILE_BYTES)) for path in (first, second)]
    try:
        (process, counts), (other_process, other_counts) = map(_counts_of, contents)
    except (KeyError, TypeError):
        return None
    if process != other_process:
        return None
    if _covers(counts, other_counts):
        return first
    return second if _covers(other_counts, counts) else None


def _counts_of(content: Any) -> tuple[list[Any], dict[tuple[str, bytes], int]]:
    """The process of a file, and its counts by definition and size; no size stands for all calls.

    Raises:
        KeyError: A field is missing.
        TypeError: A field has another type.
    """
    counts: dict[tuple[str, bytes], int] = {}
    for name, definition in _object(_object(content)["definitions"]).items():
        counts[name, b""] = _number(definition["calls"])
        for size in definition["sizes"]:
            key = msgspec.json.encode([size["axes"], _object(size).get("layout")], order="sorted")
            counts[name, key] = counts.get((name, key), 0) + _number(size["calls"])
    return [content.get(field) for field in _PROCESS], counts


def _covers(counts: Mapping[tuple[str, bytes], int], others: Mapping[tuple[str, bytes], int]) -> bool:
    return all(counts.get(key, -1) >= count for key, count in others.items())


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise TypeError(value)
    return value
