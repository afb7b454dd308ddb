"""Encoding of records as JSON, lossless: keys keep the order and the presence that their source had."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import attrs

from ._decoding import BOOKKEEPING, TAGS, may_be_too_deep, nesting
from ._limits import MAX_DEPTH
from ._record import FrozenDict, Record
from .errors import InvalidRecord, Problem

_ALWAYS_WRITTEN = frozenset({
    "solution", "evaluation", "shape", "log", "correctness", "performance", "latency_ms",
    "reference_latency_ms", "speedup_factor", "max_relative_error", "max_absolute_error",
    "dependencies", "destination_passing_style",
})  # fmt: skip
"""Fields that a record made in memory spells out even where they have their default."""


def format_json(record: Record, *, indent: int | None = None) -> str:
    """Format a record as JSON; fields keep the order and presence that their source had.

    Half of a surrogate pair, which UTF-8 cannot encode, becomes an escape.

    Raises:
        InvalidRecord: No reader could read the result: fields made in memory nest too deeply, hold an integer of too
            many digits, or something that JSON does not have.
    """
    encode = _COMPACT if indent is None else json.JSONEncoder(indent=indent, ensure_ascii=False).encode
    try:
        plain = to_plain(record)
        text = encode(plain)
        depth = nesting(plain) if may_be_too_deep(text) else 0
    except (TypeError, ValueError) as error:
        raise _unwritable(record, f"cannot be written as JSON: {error}") from error
    except RecursionError as error:
        raise _unwritable(record, "nests too deeply to be written") from error
    if depth > MAX_DEPTH:
        raise _unwritable(record, f"nests too deeply: {depth} levels, and at most {MAX_DEPTH} are read")
    return text if text.isascii() else _SURROGATE.sub(_escaped, text)


_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_SURROGATE = re.compile("[\ud800-\udfff]")


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _unwritable(record: Record, problem: str) -> InvalidRecord:
    name = type(record).__name__
    return InvalidRecord(name, (Problem("<memory>", "$", f"{problem}; change its fields", code="json"),))


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
        elif key == "type" and type(value) in TAGS:
            plain[key] = TAGS[type(value)]
    for key, default in order.if_changed:
        item = getattr(value, key)
        if item != default:
            plain[key] = _plain_field(item)
    for key, item in value.unknown_fields.items():
        plain.setdefault(key, item)
    return plain


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
    fields = {f.name: f.default for f in attrs.fields(cls) if f.name not in BOOKKEEPING}
    written = source_keys
    if written is None:
        tag = ("type",) if cls in TAGS else ()
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
