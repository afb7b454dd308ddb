"""Codec of records: JSON to records and back, by cattrs.

Reading is strict: 4.7 is not an integer, 3 is not a string and ``true`` is not a number. A canonical text is
read in two steps: msgspec checks all types while it decodes, into structs that are made from the record classes and
refuse unknown fields, and cattrs makes records of the structs. A text that is refused is decoded to plain objects, for
a second converter, which keeps unknown fields and collects every problem with its JSON path.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from functools import cache, reduce
from types import GenericAlias, MappingProxyType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs
import msgspec

from ._record import FrozenDict, Record, closest, describe
from .definition import DType
from .display import finite_value
from .errors import InvalidRecord, Keys, Problem, located_errors
from .solution import SupportedBindings, SupportedLanguages
from .trace import Environment, EvaluationStatus, Workload

if TYPE_CHECKING:
    from cattrs import Converter  # imported on use: opening a data set parses nothing

R = TypeVar("R", bound=Record)
Hook = Callable[[Any, Any], Any]

MAX_RECORD_BYTES = 64 << 20
"""The largest record that is read; the largest of the public ones is below 1 MB."""
MAX_DEPTH = 100
"""Deepest nesting of the objects and lists of a record; each consumer of a record recurses over them."""
_ALWAYS_WRITTEN = frozenset({
    "solution", "evaluation", "shape", "log", "correctness", "performance", "latency_ms",
    "reference_latency_ms", "speedup_factor", "max_relative_error", "max_absolute_error",
    "dependencies", "destination_passing_style",
})  # fmt: skip
"""Fields that are written even where they have their default."""
_SHARED = (Workload, Environment)
"""Records that recur on many lines: equal texts of them become one object."""
_LEGACY_NAMES = MappingProxyType({"op_type": "type", "hardware": "device"})
_MAX_COMPARED = 100
"""Number of unknown keys that are compared with a missing field."""
_MAX_SHARED = 100_000
_NON_FINITE = MappingProxyType({text: float(text) for text in ("Infinity", "-Infinity", "NaN")})
_EXPECTED: Mapping[Any, str] = MappingProxyType(
    {int: "an integer", str: "a string", bool: "true or false", dict: "an object", list: "a list"}
)
_ENUMS: tuple[type[StrEnum], ...] = (DType, EvaluationStatus, SupportedBindings, SupportedLanguages)


class _Mismatch(ValueError):
    """A value of another type than its field; the text is the message of the problem."""


# -- JSON to plain objects ---------------------------------------------------------------------------


def decode(text: bytes | str, kind: str, *, source: str) -> Any:
    """Decode JSON to plain objects; NaN and infinity may be bare words or strings.

    Raises:
        InvalidRecord: The text is not JSON, is not UTF-8, or nests too deeply.
    """
    try:
        plain = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        plain = _explain_json(text, kind, source)
    if may_be_too_deep(text) and (depth := nesting(plain)) > MAX_DEPTH:
        message = f"nests too deeply: {depth} levels, and at most {MAX_DEPTH} are read; flatten it"
        raise InvalidRecord(kind, (Problem(source, "$", message, code="nesting"),))
    return plain


def _explain_json(text: bytes | str, kind: str, source: str) -> Any:
    """Decode with the standard library: it reads bare NaN and says where a text breaks off."""
    code = "json"
    try:
        return json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
    except UnicodeDecodeError as error:
        message = f"is not UTF-8: byte {error.start} is {error.object[error.start]!r}; save the file as UTF-8"
    except json.JSONDecodeError as error:
        message = f"is not JSON: {error.msg.removesuffix(' at')} at line {error.lineno} column {error.colno}"
    except RecursionError:
        code, message = "nesting", f"nests too deeply; at most {MAX_DEPTH} levels are read: flatten it"
    except ValueError as error:
        message = f"cannot be read: {error}"
    raise InvalidRecord(kind, (Problem(source, "$", message, code=code),))


def may_be_too_deep(text: bytes | str) -> bool:
    """Whether a JSON text has enough brackets to nest deeper than `MAX_DEPTH`; most texts do not."""
    if isinstance(text, bytes):
        return text.count(b"[") + text.count(b"{") > MAX_DEPTH
    return text.count("[") + text.count("{") > MAX_DEPTH


def nesting(plain: Any) -> int:
    """Number of levels of nested objects and lists."""
    depth, level = 0, [plain]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [i for item in level for i in (item.values() if isinstance(item, dict) else item)]
    return depth


# -- canonical JSON to records -----------------------------------------------------------------------


def parse_json(text: bytes | str, cls: type[R], *, source: str = "<memory>") -> R:
    """Parse one JSON text into a record.

    Raises:
        InvalidRecord: The text is not JSON or no such record; holds every problem with its path.
    """
    try:
        record: R = canonical_parser(cls)(text)
    except Exception:  # noqa: BLE001 the second converter decides, and explains
        record = structure(decode(text, cls.__name__, source=source), cls, source=source)
    return record


@cache
def _parser(cls: Any) -> Callable[[bytes | str], Any]:
    decode_struct = msgspec.json.Decoder(_struct_of(cls)).decode
    hook = _canonical().get_structure_hook(cls)

    def parse(text: bytes | str) -> Any:
        if may_be_too_deep(text):
            decode(text, cls.__name__, source="")
        return hook(decode_struct(text), cls)

    return parse


canonical_parser: Callable[[Any], Callable[[bytes | str], Any]] = _parser
"""The function that parses a canonical text of a class; of any other text it raises something."""


@cache
def _struct_of(cls: Any) -> Any:
    """The struct with the fields of a record class."""
    kinds = get_type_hints(cls)
    fields: Any = [
        (field.name, _checked(kinds[field.name]), *([] if field.default is attrs.NOTHING else [field.default]))
        for field in _fields(cls)
    ]
    tag = {"tag_field": "type", "tag": tag_of(cls)} if tag_of(cls) else {}
    return msgspec.defstruct(cls.__name__, fields, forbid_unknown_fields=True, gc=False, **tag)  # type: ignore[arg-type]


def _checked(kind: Any) -> Any:
    """The type of which msgspec checks the values of a field."""
    if isinstance(kind, UnionType):
        return Union[tuple(map(_checked, get_args(kind)))]  # noqa: UP007 of a tuple of types
    if _is_object(kind):
        return GenericAlias(dict, (str, _checked(get_args(kind)[1])))
    if _is_list(kind):
        return GenericAlias(tuple, (_checked(get_args(kind)[0]), ...))
    if kind in _SHARED:
        return msgspec.Raw
    return _struct_of(kind) if attrs.has(kind) else kind


def _not_none(kind: Any) -> Any:
    """The type of the values of an optional field that are not None."""
    kinds = [one for one in get_args(kind) if one is not type(None)]
    return kinds[0] if isinstance(kind, UnionType) and len(kinds) == 1 else kind


def _holds_records(kind: Any) -> bool:
    return attrs.has(kind) or any(map(_holds_records, get_args(kind)))


@cache
def _canonical() -> Converter:
    """The converter of structs, whose types are right, to records."""
    from cattrs import Converter

    converter = Converter(detailed_validation=False)
    converter.register_structure_hook_factory(_is_union, lambda kind: _union_of_structs(kind, converter))
    converter.register_structure_hook_factory(_is_object, lambda kind: _object_hook(kind, converter))
    converter.register_structure_hook_factory(attrs.has, lambda cls: _struct_hook(cls, converter))
    return converter


def _struct_hook(cls: Any, converter: Converter) -> Hook:
    kinds = [_not_none(get_type_hints(cls)[field.name]) for field in _fields(cls)]
    inner = [
        (index, kind, _shared_hook(kind) if kind in _SHARED else converter.get_structure_hook(kind))
        for index, kind in enumerate(kinds)
        if _holds_records(kind)
    ]
    values_of = msgspec.structs.astuple
    if not inner:
        return lambda struct, _: cls(*values_of(struct))

    def hook(struct: Any, _: Any) -> Any:
        values: list[Any] = list(values_of(struct))
        for index, kind, made in inner:
            if (value := values[index]) is not None:
                values[index] = made(value, kind)
        return cls(*values)

    return hook


def _union_of_structs(kind: Any, converter: Converter) -> Hook:
    """The hook of one of several records."""
    hooks = {_struct_of(one): converter.get_structure_hook(one) for one in get_args(kind)}
    return lambda struct, _: hooks[type(struct)](struct, None)


def _shared_hook(cls: Any) -> Hook:
    known: dict[bytes, Any] = {}

    def hook(raw: Any, _: Any) -> Any:
        text = bytes(raw)
        found = known.get(text)
        if found is None:
            found = canonical_parser(cls)(text)
            if len(known) < _MAX_SHARED:
                known[text] = found
        return found

    return hook


# -- plain objects to records ------------------------------------------------------------------------


def structure(plain: Any, cls: type[R], *, source: str = "<memory>") -> R:
    """Turn plain objects into a record.

    Raises:
        InvalidRecord: Holds every problem with its path.
    """
    from cattrs.errors import BaseValidationError

    try:
        record: R = _explaining().structure(plain, cls)
    except (BaseValidationError, ValueError, TypeError) as error:
        found = tuple(_problem(source, plain, *located) for located in located_errors(error))
        raise InvalidRecord(cls.__name__, found) from None
    return record


def _problem(source: str, plain: Any, keys: Keys, error: BaseException) -> Problem:
    message = str(error)
    if isinstance(error, KeyError) and keys:
        for key in keys[:-1]:
            plain = plain[key]
        message = _missing(str(keys[-1]), plain)
    return Problem(source, reduce(child_path, keys, "$"), message, code="schema")


def child_path(path: str, key: str | int) -> str:
    """The JSON path of a key or an index."""
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!r}]"


def _missing(name: str, plain: Mapping[str, Any]) -> str:
    if (legacy := _LEGACY_NAMES.get(name)) in plain:
        return (
            f"misses the required field {name!r}; {legacy!r} is of a legacy schema: rewrite it with 'fib-bench migrate'"
        )
    misspelt = next((key for key in sorted(plain)[:_MAX_COMPARED] if key != name and closest(key, [name])), None)
    return f"misses the required field {name!r}" + (f" (it has {misspelt!r}: rename it)" if misspelt else "")


@cache
def _explaining() -> Converter:
    """The converter that keeps unknown fields and collects all problems."""
    from cattrs import Converter

    converter = Converter(detailed_validation=True)
    for kind in (int, str, bool):
        converter.register_structure_hook(kind, _exactly)
    for kind in _ENUMS:  # each by itself: a common hook would come after that of str
        converter.register_structure_hook(kind, _member)
    converter.register_structure_hook(float, _float)
    converter.register_structure_hook_func(_is_number, _number)
    converter.register_structure_hook_factory(_is_union, lambda kind: _union_hook(kind, converter))
    converter.register_structure_hook_factory(_is_object, lambda kind: _object_hook(kind, converter))
    converter.register_structure_hook_factory(_is_list, lambda kind: _list_hook(kind, converter))
    converter.register_structure_hook_factory(attrs.has, lambda cls: _record_hook(cls, converter))
    return converter


def _is_number(kind: Any) -> bool:
    return isinstance(kind, UnionType) and float in get_args(kind)


def _is_union(kind: Any) -> bool:
    return isinstance(kind, UnionType) and not _is_number(kind)


def _is_object(kind: Any) -> bool:
    return get_origin(kind) is FrozenDict


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _exactly(value: Any, kind: Any) -> Any:
    if type(value) is kind:
        return value
    raise _Mismatch(f"expected {_EXPECTED[kind]}, got {describe(value)}")


def _float(value: Any, _: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise _Mismatch(f"cannot be read as a number: {error}") from None
    if type(value) is str and value in _NON_FINITE:
        return _NON_FINITE[value]
    raise _Mismatch(f"expected a number, got {describe(value)}")


def _number(value: Any, kind: Any) -> int | float | bool:
    return value if type(value) in (bool, int) else _float(value, kind)


def _member(value: Any, kind: Any) -> Any:
    if type(value) is str and value in set(kind):
        return kind(value)
    raise _Mismatch(f"{describe(value)} is unknown (known: {', '.join(kind)})")


def _union_hook(kind: Any, converter: Converter) -> Hook:
    """The hook of a type or None, or of one of several records, which have tags."""
    if (inner := _not_none(kind)) is not kind:
        return lambda value, _: None if value is None else converter.structure(value, inner)
    classes = {tag_of(one): one for one in get_args(kind)}

    def hook(value: Any, _: Any) -> Any:
        _exactly(value, dict)
        tag = value.get("type")
        if not isinstance(tag, str) or tag not in classes:
            raise _Mismatch(f"'type' is {describe(tag)} (known: {', '.join(classes)})")
        return converter.structure(value, classes[tag])

    return hook


def _object_hook(kind: Any, converter: Converter) -> Hook:
    from cattrs.cols import mapping_structure_factory

    item_kind: Any = get_args(kind)[1]
    plain_kind: Any = GenericAlias(dict, (str, item_kind))
    inner = None if item_kind is Any else mapping_structure_factory(plain_kind, converter)

    def hook(value: Any, _: Any) -> Any:
        _exactly(value, dict)
        return FrozenDict(value if inner is None else inner(value, kind))

    return hook


def _list_hook(kind: Any, converter: Converter) -> Hook:
    """The hook of lists alone: a string would be taken for its letters, an object for its keys."""
    from cattrs.cols import homogenous_tuple_structure_factory

    inner = homogenous_tuple_structure_factory(kind, converter)

    def hook(value: Any, _: Any) -> Any:
        _exactly(value, list)
        return inner(value, kind)

    return hook


def _record_hook(cls: Any, converter: Converter) -> Hook:
    from cattrs.gen import make_dict_structure_fn, override

    made = make_dict_structure_fn(cls, converter, unknown_fields=override(omit=True))
    known = {field.name for field in _fields(cls)} | ({"type"} if tag_of(cls) else set())

    def hook(value: Any, _: Any) -> Any:
        _exactly(value, dict)
        record = made(value, cls)
        unknown = {key: item for key, item in value.items() if key not in known}
        return attrs.evolve(record, unknown_fields=unknown) if unknown else record

    return hook


def _fields(cls: Any) -> list[attrs.Attribute[Any]]:
    return [field for field in attrs.fields(cls) if field.name != "unknown_fields"]


def tag_of(cls: Any) -> str:
    """The value of ``type`` in the JSON of a record that shares a field with others; empty for others."""
    return getattr(cls, "type", "")


# -- records to JSON ---------------------------------------------------------------------------------


def to_plain(value: Any) -> Any:
    """Turn a record into plain objects for JSON; infinities and NaN of its fields become strings."""
    return _unstructurer().unstructure(value)


def format_json(record: Record, *, indent: int | None = None) -> str:
    """Format a record as JSON.

    Raises:
        InvalidRecord: No reader could read the result: fields made in memory nest too deeply, or hold something that
            JSON does not have.
    """
    try:
        plain = to_plain(record)
        text = _encode(plain, indent)
        depth = nesting(plain) if may_be_too_deep(text) else 0
    except (TypeError, ValueError, RecursionError) as error:
        raise _unwritable(record, f"cannot be written as JSON: {error}") from error
    if depth > MAX_DEPTH:
        raise _unwritable(record, f"nests too deeply: {depth} levels, and at most {MAX_DEPTH} are read")
    return text


def _encode(plain: Any, indent: int | None) -> str:
    try:
        text = msgspec.json.encode(plain)
        return (text if indent is None else msgspec.json.format(text, indent=indent)).decode()
    except (UnicodeEncodeError, OverflowError):  # half of a surrogate pair; an integer beyond 64 bits
        return json.dumps(plain, indent=indent, separators=None if indent else (",", ":"))


def _unwritable(record: Record, problem: str) -> InvalidRecord:
    name = type(record).__name__
    return InvalidRecord(name, (Problem("<memory>", "$", f"{problem}; change its fields", code="json"),))


@cache
def _unstructurer() -> Converter:
    from cattrs import Converter

    converter = Converter()
    converter.register_unstructure_hook(float, finite_value)
    for kind in _ENUMS:
        converter.register_unstructure_hook(kind, str)
    converter.register_unstructure_hook_factory(_is_list, lambda kind: _plain_list_hook(kind, converter))
    converter.register_unstructure_hook_factory(
        _is_object, lambda kind: dict if get_args(kind)[1] in (str, int) else _plain_object
    )
    converter.register_unstructure_hook_factory(attrs.has, lambda cls: _plain_hook(cls, converter))
    return converter


def _plain_hook(cls: Any, converter: Converter) -> Callable[[Any], Any]:
    from cattrs.gen import make_dict_unstructure_fn, override

    fields: Any = {field.name: override(omit_if_default=field.name not in _ALWAYS_WRITTEN) for field in _fields(cls)}
    made = make_dict_unstructure_fn(cls, converter, unknown_fields=override(omit=True), **fields)
    tag = {"type": tag_of(cls)} if tag_of(cls) else {}

    def hook(record: Any) -> Any:
        plain = tag | made(record) if tag else made(record)
        return {**plain, **_plain_object(record.unknown_fields)} if record.unknown_fields else plain

    return hook


def _plain_list_hook(kind: Any, converter: Converter) -> Callable[[Any], Any]:
    inner = converter.get_unstructure_hook(get_args(kind)[0])
    return lambda value: [inner(item) for item in value]


def _plain_object(value: Any) -> Any:
    """Plain objects of fields whose types nothing declares."""
    if isinstance(value, Record):
        return to_plain(value)
    if isinstance(value, float):
        return finite_value(value)
    if isinstance(value, Mapping):
        return {key: _plain_object(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_object(item) for item in value]
    if value is None or isinstance(value, str | int):
        return str(value) if isinstance(value, StrEnum) else value
    raise TypeError(f"{describe(value)} is no JSON value")


@contextmanager
def paused_gc() -> Iterator[None]:
    """Pause the cyclic collector, which takes 85 % of the time of making many records; they have no cycles.

    Afterwards the records are put into the oldest generation. Visiting them first took 1.8 of 4.2 s for 200,000 traces.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        if not gc.get_freeze_count():  # objects that a program has frozen stay so
            gc.freeze()
            gc.unfreeze()
    finally:
        if was_enabled:
            gc.enable()
