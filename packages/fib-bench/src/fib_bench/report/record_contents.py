"""Contents of records in merges: parsed without schema, digested and compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

_SHOWN_FIELDS = 6


def parsed_json(data: bytes) -> Any:
    """The value of a JSON text, or None if it is invalid."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(data)
    return None


def content_digest(data: bytes, content: Any) -> bytes:
    """A digest that does not depend on the order of keys; of the bytes if it is not JSON."""
    canonical = data
    if content is not None:
        with suppress(msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            canonical = msgspec.json.encode(content, order="sorted")
    return hashlib.blake2b(canonical, digest_size=16).digest()


def line_at(place: str) -> Any:
    """The value of a line, given as ``FILE:LINE``."""
    path, _, number = place.rpartition(":")
    with Path(path).open("rb") as stream:
        return next((parsed_json(line) for index, line in enumerate(stream, 1) if index == int(number)), None)


def describe_difference(first: Any, second: Any) -> str:
    """The paths of fields in which two JSON values differ."""
    try:
        paths = list(_differing(first, second, ""))
    except RecursionError:
        return "values that nest too deep to compare"
    more = f" and {len(paths) - _SHOWN_FIELDS} more" if len(paths) > _SHOWN_FIELDS else ""
    return ", ".join(paths[:_SHOWN_FIELDS]) + more


def _differing(first: Any, second: Any, path: str) -> Iterator[str]:
    if isinstance(first, dict) and isinstance(second, dict):
        for key in dict.fromkeys([*first, *second]):
            if key not in first or key not in second:
                yield f"{path}.{key}".lstrip(".")
            else:
                yield from _differing(first[key], second[key], f"{path}.{key}")
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from _differing(one, other, f"{path}[{index}]")
    elif type(first) is not type(second) or first != second:
        yield path.lstrip(".") or "everything"
