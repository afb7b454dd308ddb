"""JSON functions of the first release: those that load or append take the path first."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from fib_schema import append_jsonl_file, format_json, parse_json, save_json_file, save_jsonl_file
from fib_schema import load_json_file as _load_json_file
from fib_schema import load_jsonl_file as _load_jsonl_file
from fib_schema import to_plain as dataclass_to_dict
from fib_schema.codec import R as T
from fib_schema.codec import structure

__all__ = [
    "T",
    "append_jsonl_line",
    "append_jsonl_lines",
    "dataclass_to_dict",
    "dict_to_dataclass",
    "from_json",
    "load_json_file",
    "load_jsonl_file",
    "save_json_file",
    "save_jsonl_file",
    "to_json",
]


def dict_to_dataclass(data: Mapping[str, Any], cls: type[T]) -> T:
    """Parse a record from plain objects.

    Raises:
        InvalidRecord: They do not describe a record of this class (a ValueError).
    """
    return structure(data, cls)


def to_json(obj: Any, indent: int | None = 2) -> str:
    """Format a record as JSON."""
    return format_json(obj, indent=indent)


def from_json(json_str: str | bytes, cls: type[T]) -> T:
    """Parse a record from JSON.

    Raises:
        InvalidRecord: It does not describe a record of this class (a ValueError).
    """
    return parse_json(json_str, cls)


def load_json_file(path: str | os.PathLike[str], cls: type[T]) -> T:
    """`fib_schema.load_json_file` with the path first."""
    return _load_json_file(cls, path)


def load_jsonl_file(path: str | os.PathLike[str], cls: type[T]) -> list[T]:
    """`fib_schema.load_jsonl_file` with the path first."""
    return _load_jsonl_file(cls, path)


def append_jsonl_line(path: str | os.PathLike[str], obj: Any) -> None:
    """Append one record; it is synced to the disk when this returns."""
    append_jsonl_file([obj], path)


def append_jsonl_lines(path: str | os.PathLike[str], objs: Iterable[Any]) -> None:
    """Append records; they are synced to the disk when this returns."""
    append_jsonl_file(objs, path)
