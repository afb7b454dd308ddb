"""Decoding of JSON to plain objects, and of plain objects to records.

The second step is strict: 4.7 is not an integer, 3 is not a string and ``true`` is not a number. The types of a
record's fields decide how each is converted, its validators decide the rest, and one pass collects
every problem with its JSON path. cattrs took as long and needed a second pass for the paths.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

import attrs
import msgspec

from ._checks import closest, describe
from ._limits import MAX_DEPTH
from ._record import FrozenDict, Record
from .definition import AxisConst, AxisVar
from .errors import InvalidField, InvalidRecord, Problem
from .workload import RandomInput, SafetensorsInput, ScalarInput

R = TypeVar("R", bound=Record)
Convert = Callable[[Any], Any]

TAGS: Mapping[type[Record], str] = MappingProxyType({
    AxisConst: "const",
    AxisVar: "var",
    RandomInput: "random",
    ScalarInput: "scalar",
    SafetensorsInput: "safetensors",
})  # fmt: skip
"""Value of ``type`` in the JSON of records that share a field."""
BOOKKEEPING = frozenset({"unknown_fields", "source_keys"})
"""Fields of a record that are not fields of its JSON."""
_MAX_COMPARED = 100
"""Number of unknown keys that are compared with a missing field."""
_NON_FINITE = MappingProxyType({text: float(text) for text in ("Infinity", "-Infinity", "NaN")})
_EXPECTED: Mapping[type, str] = MappingProxyType({int: "an integer", str: "a string", bool: "true or false"})


class _Invalid(Exception):
    """Problems of a value: pairs of a JSON path below it and a message."""

    def __init__(self, *problems: tuple[str, str]) -> None:
        self.problems = problems

    def below(self, step: str) -> list[tuple[str, str]]:
        """The problems with their paths from one level above."""
        return [(step + path, message) for path, message in self.problems]


def decode(text: bytes | str, kind: str, *, source: str) -> Any:
    """Decode JSON to plain objects; NaN and infinity may be bare words or strings.

    Raises:
        InvalidRecord: The text is not JSON, is not UTF-8, nests too deeply, or has an integer or a string that
            Python cannot write again.
    """
    try:
        plain = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        plain = _explain(text, kind, source)
    if may_be_too_deep(text) and (depth := nesting(plain)) > MAX_DEPTH:
        message = f"nests too deeply: {depth} levels, and at most {MAX_DEPTH} are read; flatten it"
        raise InvalidRecord(kind, (Problem(source, "$", message, code="nesting"),))
    return plain


def _explain(text: bytes | str, kind: str, source: str) -> Any:
    """Decode with the standard library: it reads bare NaN and says where a text breaks off."""
    code = "json"
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return json.loads(text)
    except UnicodeDecodeError as error:
        message = f"is not UTF-8: byte {error.start} is {text[error.start]!r}; save the file as UTF-8"
    except json.JSONDecodeError as error:
        message = f"is not JSON: {error.msg.removesuffix(' at')} at line {error.lineno} column {error.colno}"
    except RecursionError:
        code, message = "nesting", f"nests too deeply; at most {MAX_DEPTH} levels are read: flatten it"
    except ValueError:
        digits = sys.get_int_max_str_digits()
        message = f"cannot be read: it has an integer of more than {digits} digits; shorten it"
    raise InvalidRecord(kind, (Problem(source, "$", message, code=code),))


def may_be_too_deep(text: bytes | str) -> bool:
    """Whether a JSON text has enough brackets to nest deeper than `MAX_DEPTH`; most texts do not."""
    if isinstance(text, bytes):
        return text.count(b"[") + text.count(b"{") > MAX_DEPTH
    return text.count("[") + text.count("{") > MAX_DEPTH


def nesting(plain: Any) -> int:
    """Number of levels of nested objects and lists."""
    depth, level = 0, [plain] if isinstance(plain, dict | list) else []
    while level:
        depth += 1
        inner = [i for item in level for i in (item.values() if isinstance(item, dict) else item)]
        level = [item for item in inner if isinstance(item, dict | list)]
    return depth


def structure(plain: Any, cls: type[R], *, source: str = "<memory>") -> R:
    """Turn plain objects into a record.

    Raises:
        InvalidRecord: Holds every problem with its path.
    """
    record_class: Any = cls  # mypy takes the hash of an unhashable record for that of its class
    try:
        record: R = _record(record_class)(plain)
    except _Invalid as error:
        problems = tuple(Problem(source, f"${path}", message, code="schema") for path, message in error.problems)
        raise InvalidRecord(cls.__name__, problems) from None
    return record


@cache
def _converter(kind: Any) -> Convert:
    """The function that converts a value to a type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value: value
    if kind in _EXPECTED:
        return _exactly(kind)
    if kind is float:
        return _float
    if origin in (typing.Union, types.UnionType):
        return _union([argument for argument in arguments if argument is not type(None)])
    if origin is FrozenDict:
        return _mapping(arguments[1])
    if origin is tuple:
        return _sequence(_converter(arguments[0]))
    if issubclass(kind, StrEnum):
        return _enum(kind)
    return _record(kind)


def _union(kinds: list[Any]) -> Convert:
    """One type or null; or several, which a tag or the value itself tells apart."""
    if len(kinds) > 1:
        return _number if float in kinds else _tagged(kinds)
    convert = _converter(kinds[0])
    return lambda value: None if value is None else convert(value)


def _exactly(kind: type) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise _Invalid(("", f"expected {_EXPECTED[kind]}, got {describe(value)}"))

    return convert


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise _Invalid(("", f"cannot be read as a number: {error}")) from None
    if type(value) is str and value in _NON_FINITE:
        return _NON_FINITE[value]
    raise _Invalid(("", f"expected a number, got {describe(value)}"))


def _number(value: Any) -> int | float | bool:
    if type(value) in (bool, int):
        found: int | bool = value
        return found
    return _float(value)


def _enum(enum: type[StrEnum]) -> Convert:
    members = {str(member): member for member in enum}

    def convert(value: Any) -> Any:
        if type(value) is str and value in members:
            return members[value]
        raise _Invalid(("", f"{describe(value)} is unknown (known: {', '.join(members)})"))

    return convert


def _tagged(kinds: list[Any]) -> Convert:
    records = {TAGS[kind]: _record(kind) for kind in kinds}

    def convert(value: Any) -> Any:
        _check_object(value)
        tag = value.get("type")
        if not isinstance(tag, str) or tag not in records:
            raise _Invalid(("", f"'type' is {describe(tag)} (known: {', '.join(records)})"))
        return records[tag](value)

    return convert


def _mapping(item_kind: Any) -> Convert:
    item = _converter(item_kind)

    def convert(value: Any) -> Any:
        _check_object(value)
        return FrozenDict(value if item_kind is Any else _each(value.items(), item))

    return convert


def _sequence(item: Convert) -> Convert:
    """Lists alone: a string would be taken for its letters, an object for its keys."""

    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise _Invalid(("", f"expected a list, got {describe(value)}"))
        return tuple(_each(enumerate(value), item).values())

    return convert


def _each(items: typing.Iterable[tuple[Any, Any]], convert: Convert) -> dict[Any, Any]:
    converted: dict[Any, Any] = {}
    problems: list[tuple[str, str]] = []
    for key, value in items:
        try:
            converted[key] = convert(value)
        except _Invalid as error:
            problems += error.below(f"[{key!r}]")
    if problems:
        raise _Invalid(*problems)
    return converted


@cache
def _record(cls: Any) -> Convert:
    kinds = typing.get_type_hints(cls)
    fields = [
        (field.name, _converter(kinds[field.name]), field.default is attrs.NOTHING)
        for field in attrs.fields(cls)
        if field.name not in BOOKKEEPING
    ]

    def convert(value: Any) -> Any:
        _check_object(value)
        converted: dict[str, Any] = {}
        problems: list[tuple[str, str]] = []
        for name, convert_field, is_required in fields:
            if name in value:
                try:
                    converted[name] = convert_field(value[name])
                except _Invalid as error:
                    problems += error.below(f".{name}")
            elif is_required:
                problems.append((f".{name}", _missing(name, value, cls)))
        if problems:
            raise _Invalid(*problems)
        keys, unknown = _split_keys(cls, tuple(value))
        if unknown:
            converted["unknown_fields"] = {key: value[key] for key in unknown}
        try:
            return cls(source_keys=keys, **converted)
        except (InvalidField, TypeError, ValueError) as error:
            raise _Invalid(("", str(error))) from None

    return convert


@lru_cache(maxsize=4096)
def _split_keys(cls: Any, keys: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys, as one tuple for all records that have them, and those that the class has no field for."""
    return keys, tuple(key for key in keys if key not in field_names(cls))


def field_names(cls: Any) -> frozenset[str]:
    """The keys of a record's JSON that its class knows."""
    known = {field.name for field in attrs.fields(cls)} - BOOKKEEPING
    return frozenset(known | {"type"} if cls in TAGS else known)


def _missing(name: str, value: dict[str, Any], cls: Any) -> str:
    others = value.keys() - field_names(cls)
    misspelt = next((key for key in sorted(others)[:_MAX_COMPARED] if closest(key, [name])), None)
    return f"misses the required field {name!r}" + (f" (it has {misspelt!r}: rename it)" if misspelt else "")


def _check_object(value: Any) -> None:
    if type(value) is not dict:
        raise _Invalid(("", f"expected an object, got {describe(value)}"))
