"""Plain objects to records: cattrs with strict hooks, and a second pass that explains failures.

The fast converter stops at the first problem and knows no path. Only when it fails does the
detailed one run, to find all problems and where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

import attrs
from cattrs import Converter, transform_error
from cattrs.errors import BaseValidationError
from cattrs.gen import make_dict_structure_fn, override

from ._checks import describe
from ._record import FrozenDict, Record
from .definition import AxisConst, AxisSpec, AxisVar, DType
from .errors import InvalidField, Problem
from .solution import SupportedBindings, SupportedLanguages
from .trace import EvaluationStatus
from .workload import InputSpec, RandomInput, SafetensorsInput, ScalarInput

R = TypeVar("R", bound=Record)
Hook = Callable[[Any, Any], Any]

_AXIS_TAGS: Mapping[str, type[Record]] = MappingProxyType({"const": AxisConst, "var": AxisVar})
_INPUT_TAGS: Mapping[str, type[Record]] = MappingProxyType(
    {"random": RandomInput, "scalar": ScalarInput, "safetensors": SafetensorsInput}
)
_TAGGED = frozenset({*_AXIS_TAGS.values(), *_INPUT_TAGS.values()})
_NON_FINITE = MappingProxyType({text: float(text) for text in ("Infinity", "-Infinity", "NaN")})


def structure_record(plain: Any, cls: type[R]) -> R:
    """Turn plain objects into a record; stops at the first problem (ValueError, TypeError, KeyError)."""
    return _converter(detailed=False).structure(plain, cls)


def problems_in(plain: Any, cls: type[Record], source: str) -> list[Problem]:
    """Every problem of plain objects that are no such record, each with its path."""
    try:
        _converter(detailed=True).structure(plain, cls)
    except BaseValidationError as error:
        return [_problem(text, source) for text in transform_error(error, format_exception=_explain)]
    except (ValueError, TypeError, KeyError) as error:
        return [Problem(source, "$", _explain(error, None))]
    raise AssertionError(f"the two converters disagree about {source}")


def _problem(text: str, source: str) -> Problem:
    message, _, path = text.rpartition(" @ ")
    return Problem(source, path, message)


def _explain(error: BaseException, _kind: type | None) -> str:
    match error:
        case KeyError(args=(key,)):
            return f"misses the required field {key!r}"
        case InvalidField() | TypeError() | ValueError():
            return str(error)
    return f"{type(error).__name__}: {error}"


@cache
def _converter(*, detailed: bool) -> Converter:
    converter = Converter(detailed_validation=detailed, prefer_attrib_converters=False)
    for kind, hook in _scalar_hooks().items():
        converter.register_structure_hook(kind, hook)
    converter.register_structure_hook_func(_is_any, lambda value, _: value)
    converter.register_structure_hook_func(_is_json_object, _json_object)
    converter.register_structure_hook_func(lambda t: t == AxisSpec, _tagged(converter, _AXIS_TAGS))
    converter.register_structure_hook_func(lambda t: t == InputSpec, _tagged(converter, _INPUT_TAGS))
    converter.register_structure_hook_factory(
        lambda t: getattr(t, "__origin__", None) is FrozenDict and t.__args__[1] is not Any,
        lambda t: _mapping(converter, t.__args__[1], detailed),
    )
    converter.register_structure_hook_factory(
        lambda t: getattr(t, "__origin__", None) is tuple and t.__args__[1:] == (...,),
        lambda t: _sequence(converter, t.__args__[0], detailed),
    )
    converter.register_structure_hook_factory(
        lambda t: isinstance(t, type) and issubclass(t, Record),
        lambda cls: _record(converter, cls, detailed),
    )
    return converter


def _scalar_hooks() -> dict[Any, Hook]:
    hooks: dict[Any, Hook] = {int: _exactly(int), str: _exactly(str), bool: _exactly(bool), float: _float}
    hooks[int | float | bool] = _number
    for enum in (DType, SupportedLanguages, SupportedBindings, EvaluationStatus):
        hooks[enum] = _enum(enum)
    return hooks


def _exactly(kind: type) -> Hook:
    names = {int: "an integer", str: "a string", bool: "true or false"}

    def hook(value: Any, _: Any) -> Any:
        if type(value) is kind:
            return value
        raise TypeError(f"expected {names[kind]}, got {describe(value)}")

    return hook


def _float(value: Any, _: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    if type(value) is str and value in _NON_FINITE:
        return _NON_FINITE[value]
    raise TypeError(f"expected a number, got {describe(value)}")


def _number(value: Any, _: Any) -> int | float | bool:
    if type(value) in (bool, int):
        found: int | bool = value
        return found
    return _float(value, None)


def _enum(enum: type[StrEnum]) -> Hook:
    members = {str(member): member for member in enum}

    def hook(value: Any, _: Any) -> Any:
        if type(value) is str and value in members:
            return members[value]
        raise ValueError(f"{describe(value)} is unknown (known: {', '.join(members)})")

    return hook


def _is_any(kind: Any) -> bool:
    return kind is Any


def _is_json_object(kind: Any) -> bool:
    return getattr(kind, "__origin__", None) is FrozenDict and kind.__args__[1] is Any


def _json_object(value: Any, _: Any) -> FrozenDict[str, Any]:
    if type(value) is not dict:
        raise TypeError(f"expected an object, got {describe(value)}")
    return FrozenDict(value)


def _tagged(converter: Converter, tags: Mapping[str, type[Record]]) -> Hook:
    known = ", ".join(tags)

    def hook(value: Any, _: Any) -> Any:
        if type(value) is not dict:
            raise TypeError(f"expected an object, got {describe(value)}")
        tag = value.get("type")
        cls = tags.get(tag) if isinstance(tag, str) else None
        if cls is None:
            raise ValueError(f"'type' is {describe(tag)} (known: {known})")
        return converter.structure(value, cls)

    return hook


def _mapping(converter: Converter, item_kind: Any, detailed: bool) -> Hook:
    inner = converter.get_structure_hook(dict[str, item_kind])
    item = converter.get_structure_hook(item_kind)

    def fast(value: Any, _: Any) -> Any:
        if type(value) is not dict:
            raise TypeError(f"expected an object, got {describe(value)}")
        return FrozenDict({key: item(entry, item_kind) for key, entry in value.items()})

    def explained(value: Any, _: Any) -> Any:
        if type(value) is not dict:
            raise TypeError(f"expected an object, got {describe(value)}")
        return FrozenDict(inner(value, dict[str, item_kind]))

    return explained if detailed else fast


def _sequence(converter: Converter, item_kind: Any, detailed: bool) -> Hook:
    """Lists alone: a string would be taken for its letters, an object for its keys."""
    inner = converter.get_structure_hook(list[item_kind])
    item = converter.get_structure_hook(item_kind)

    def hook(value: Any, _: Any) -> Any:
        if type(value) is not list:
            raise TypeError(f"expected a list, got {describe(value)}")
        if detailed:
            return tuple(inner(value, list[item_kind]))
        return tuple([item(entry, item_kind) for entry in value])

    return hook


def _record(converter: Converter, cls: type[Record], detailed: bool) -> Hook:
    """Structure one class, remembering its source's keys and the fields that nobody planned for."""
    omitted: dict[str, Any] = {name: override(omit=True) for name in ("unknown_fields", "source_keys")}
    attrs.resolve_types(cls)
    generated = make_dict_structure_fn(cls, converter, _cattrs_detailed_validation=detailed, **omitted)
    known = {f.name for f in attrs.fields(cls)} - omitted.keys() | ({"type"} if cls in _TAGGED else set())
    unknown_of: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[str, ...]]] = {}
    remember = object.__setattr__

    def hook(value: Any, _: Any) -> Any:
        if type(value) is not dict:
            raise TypeError(f"expected an object, got {describe(value)}")
        record = generated(value, cls)
        keys = tuple(value)
        if (entry := unknown_of.get(keys)) is None:
            entry = keys, tuple(key for key in keys if key not in known)
            if len(unknown_of) < 1000:
                unknown_of[keys] = entry
        remember(record, "source_keys", entry[0])
        if entry[1]:
            remember(record, "unknown_fields", FrozenDict({key: value[key] for key in entry[1]}))
        return record

    return hook
