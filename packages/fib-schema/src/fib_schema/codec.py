"""Codec of records: JSON to records and back, by cattrs.

Reading is strict: 4.7 is not an integer, 3 is not a string and ``true`` is not a number. `structure` tries a converter
that raises at the first deviation, a field that the class does not know included. What it refuses goes to a second one,
which keeps unknown fields and collects every problem with its JSON path.

Measured on two busy cores: 200,000 traces in 2.9 s, of which JSON takes 0.5 s; with own parsers it was 2.9 s too.
"""

from __future__ import annotations

import json
import marshal
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from types import GenericAlias, MappingProxyType, UnionType
from typing import Any, TypeVar, get_args, get_origin

import attrs
import cattrs
import msgspec
from cattrs.errors import AttributeValidationNote, BaseValidationError, IterableValidationNote
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from cattrs.preconf.msgspec import MsgspecJsonConverter, make_converter

from ._legacy import upgrade
from ._record import FrozenDict, Record, closest, describe
from .definition import AxisConst, AxisSpec, AxisVar, DType
from .errors import InvalidRecord, Problem
from .solution import SupportedBindings, SupportedLanguages
from .trace import Environment, EvaluationStatus, Trace
from .workload import InputSpec, RandomInput, SafetensorsInput, ScalarInput, Workload

R = TypeVar("R", bound=Record)
Hook = Callable[[Any, Any], Any]

MAX_RECORD_BYTES = 64 << 20
"""The largest record that is read; the largest of the public ones is below 1 MB."""
MAX_DEPTH = 100
"""Deepest nesting of the objects and lists of a record; each consumer of a record recurses over them."""
TAGS: Mapping[type[Record], str] = MappingProxyType({
    AxisConst: "const",
    AxisVar: "var",
    RandomInput: "random",
    ScalarInput: "scalar",
    SafetensorsInput: "safetensors",
})  # fmt: skip
"""Value of ``type`` in the JSON of records that share a field."""
_ALWAYS_WRITTEN = frozenset({
    "solution", "evaluation", "shape", "log", "correctness", "performance", "latency_ms",
    "reference_latency_ms", "speedup_factor", "max_relative_error", "max_absolute_error",
    "dependencies", "destination_passing_style",
})  # fmt: skip
"""Fields that are written even where they have their default."""
_MAX_COMPARED = 100
"""Number of unknown keys that are compared with a missing field."""
_MAX_SHARED = 100_000
"""Number of workloads and environments that are kept, because thousands of traces share them."""
_MAX_FORMATTED = 1000
_NON_FINITE = MappingProxyType({text: float(text) for text in ("Infinity", "-Infinity", "NaN")})
_EXPECTED: Mapping[Any, str] = MappingProxyType({int: "an integer", str: "a string", bool: "true or false"})


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
    depth, level = 0, [plain] if isinstance(plain, dict | list) else []
    while level:
        depth += 1
        inner = [i for item in level for i in (item.values() if isinstance(item, dict) else item)]
        level = [item for item in inner if isinstance(item, dict | list)]
    return depth


# -- plain objects to records ------------------------------------------------------------------------


def structure(plain: Any, cls: type[R], *, source: str = "<memory>") -> R:
    """Turn plain objects into a record.

    Raises:
        InvalidRecord: Holds every problem with its path.
    """
    record: R
    record_class: Any = cls  # mypy takes the hash of an unhashable record for that of its class
    try:
        record = structure_hook(record_class)(plain, cls)
    except Exception:  # noqa: BLE001 the second converter decides, and explains
        try:
            record = _lenient().structure(plain, cls)
        except (BaseValidationError, ValueError, TypeError) as error:
            found = tuple(Problem(source, path, text, code="schema") for path, text in _problems(error, plain, "$"))
            raise InvalidRecord(cls.__name__, found) from None
    return record


@cache
def structure_hook(cls: Any) -> Hook:
    """The function of plain objects and a class that makes canonical records, and raises anything for others."""
    return _strict().get_structure_hook(cls)


def _problems(error: Exception, plain: Any, path: str) -> Iterator[tuple[str, str]]:
    """The paths and messages in an error of cattrs, which is a tree of errors with the names of fields."""
    if not isinstance(error, BaseValidationError):
        yield path, _missing(error.args[0], plain) if isinstance(error, KeyError) else str(error)
        return
    for inner, note in _annotated(error):
        if note is None:
            yield from _problems(inner, plain, path)
        elif isinstance(note, AttributeValidationNote):
            is_missing = isinstance(inner, KeyError) and note.name not in plain
            below = plain if is_missing else plain[note.name]
            yield from _problems(inner, below, child_path(path, note.name))
        else:
            yield from _problems(inner, plain[note.index], child_path(path, note.index))


def _annotated(error: BaseValidationError) -> Iterator[tuple[Exception, Any]]:
    for inner in error.exceptions:
        notes = [n for n in getattr(inner, "__notes__", ()) if isinstance(n, _NOTES)]
        yield inner, notes[-1] if notes else None


_NOTES = (AttributeValidationNote, IterableValidationNote)


def child_path(path: str, key: str | int) -> str:
    """The JSON path of a key or an index."""
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!r}]"


def _missing(name: str, plain: Mapping[str, Any]) -> str:
    misspelt = next((key for key in sorted(plain)[:_MAX_COMPARED] if key != name and closest(key, [name])), None)
    return f"misses the required field {name!r}" + (f" (it has {misspelt!r}: rename it)" if misspelt else "")


@cache
def _strict() -> MsgspecJsonConverter:
    """The converter of canonical records."""
    return _converter(is_lenient=False)


@cache
def _lenient() -> MsgspecJsonConverter:
    """The converter that keeps unknown fields and collects all problems."""
    return _converter(is_lenient=True)


def _converter(*, is_lenient: bool) -> MsgspecJsonConverter:
    converter = make_converter(detailed_validation=is_lenient)
    for kind, hook in _SCALAR_HOOKS.items():  # each by itself: a class of enumerations would be taken for a str
        converter.register_structure_hook(kind, hook)
    converter.register_structure_hook_func(_is_number, _number)
    converter.register_structure_hook_factory(_is_optional, lambda kind: _optional_hook(kind, converter))
    converter.register_structure_hook_factory(_is_object, lambda kind: _object_hook(kind, converter))
    converter.register_structure_hook_factory(_is_list, lambda kind: _list_hook(kind, converter))
    converter.register_structure_hook_factory(attrs.has, lambda cls: _record_hook(cls, converter))
    for union in (AxisSpec, InputSpec):
        converter.register_structure_hook(union, _tagged_hook(get_args(union), converter))
    for shared in () if is_lenient else (Workload, Environment):
        converter.register_structure_hook(shared, _shared_hook(converter.get_structure_hook(shared)))
    return converter


def _is_number(kind: Any) -> bool:
    return isinstance(kind, UnionType) and float in get_args(kind)


def _is_optional(kind: Any) -> bool:
    return isinstance(kind, UnionType) and len(get_args(kind)) == 2 and type(None) in get_args(kind)


def _optional_hook(kind: Any, converter: MsgspecJsonConverter) -> Hook:
    inner_kind = next(one for one in get_args(kind) if one is not type(None))
    if attrs.has(inner_kind):
        return _record_hook(inner_kind, converter, is_optional=True)
    inner = converter.get_structure_hook(inner_kind)
    return lambda value, _: None if value is None else inner(value, inner_kind)


def _is_object(kind: Any) -> bool:
    return get_origin(kind) is FrozenDict


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _exactly(kind: type) -> Hook:
    def hook(value: Any, _: Any) -> Any:
        if type(value) is kind:
            return value
        raise _Mismatch(f"expected {_EXPECTED[kind]}, got {describe(value)}")

    return hook


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


def _member_hook(kind: Any) -> Hook:
    members = {str(member): member for member in kind}

    def hook(value: Any, _: Any) -> Any:
        if type(value) is str and value in members:
            return members[value]
        raise _Mismatch(f"{describe(value)} is unknown (known: {', '.join(members)})")

    return hook


_ENUMS: tuple[type[StrEnum], ...] = (DType, EvaluationStatus, SupportedBindings, SupportedLanguages)
_SCALAR_HOOKS: Mapping[Any, Hook] = {
    **{kind: _exactly(kind) for kind in _EXPECTED},
    float: _float,
    **{kind: _member_hook(kind) for kind in _ENUMS},
}


def _object_hook(kind: Any, converter: MsgspecJsonConverter) -> Hook:
    item_kind: Any = get_args(kind)[1]
    plain_kind: Any = GenericAlias(dict, (str, item_kind))
    inner: Hook | None = None
    if item_kind is not Any:
        inner = cattrs.cols.mapping_structure_factory(plain_kind, converter)

    def hook(value: Any, _: Any) -> Any:
        _check(value, dict)
        return FrozenDict(value if inner is None else inner(value, kind))

    return hook


def _list_hook(kind: Any, converter: MsgspecJsonConverter) -> Hook:
    """The hook of lists alone: a string would be taken for its letters, an object for its keys."""
    inner = cattrs.cols.homogenous_tuple_structure_factory(kind, converter)

    def hook(value: Any, _: Any) -> Any:
        _check(value, list)
        return inner(value, kind)

    return hook


def _record_hook(cls: Any, converter: MsgspecJsonConverter, *, is_optional: bool = False) -> Hook:
    made: Hook = make_dict_structure_fn(cls, converter, unknown_fields=override(omit=True))
    known = field_names(cls)
    has_known_keys = known.issuperset  # `forbid_extra_keys` makes two sets for each object

    def strict(value: Any, _: Any) -> Any:
        if value is None and is_optional:
            return None
        if type(value) is not dict or not has_known_keys(value):
            raise _Mismatch("is no object, or has unknown fields")
        return made(value, cls)

    def lenient(value: Any, _: Any) -> Any:
        if value is None and is_optional:
            return None
        _check(value, dict)
        record = made(value, cls)
        unknown = {key: item for key, item in value.items() if key not in known}
        return attrs.evolve(record, unknown_fields=unknown) if unknown else record

    return lenient if converter.detailed_validation else strict


def _tagged_hook(kinds: Iterable[Any], converter: MsgspecJsonConverter) -> Hook:
    hooks = {TAGS[kind]: (kind, converter.get_structure_hook(kind)) for kind in kinds}
    without_fields = {TAGS[RandomInput]: RandomInput(), TAGS[AxisVar]: AxisVar()}

    def hook(value: Any, _: Any) -> Any:
        _check(value, dict)
        tag = value.get("type")
        if not isinstance(tag, str) or tag not in hooks:
            raise _Mismatch(f"'type' is {describe(tag)} (known: {', '.join(hooks)})")
        if len(value) == 1 and tag in without_fields:
            return without_fields[tag]
        kind, made = hooks[tag]
        return made(value, kind)

    return hook


def _shared_hook(made: Hook) -> Hook:
    """The hook of records that recur on many lines: equal ones become one object."""
    known: dict[bytes, Any] = {}

    def hook(value: Any, kind: Any) -> Any:
        key = marshal.dumps(value, 2)  # tells 1, 1.0 and true apart
        found = known.get(key)
        if found is None:
            found = made(value, kind)
            if len(known) < _MAX_SHARED:
                known[key] = found
        return found

    return hook


def _check(value: Any, kind: type) -> None:
    if type(value) is not kind:
        raise _Mismatch(f"expected {'an object' if kind is dict else 'a list'}, got {describe(value)}")


@cache
def field_names(cls: Any) -> frozenset[str]:
    """The keys of a record's JSON that its class knows."""
    known = {field.name for field in attrs.fields(cls)} - {"unknown_fields"}
    return frozenset(known | {"type"} if cls in TAGS else known)


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


@cache
def trace_parser() -> Callable[[bytes], Trace]:
    """The function that parses a canonical line; of any other, whatever is wrong with it, it raises something."""
    hook, decode_line = structure_hook(Trace), msgspec.json.decode

    def parse(line: bytes) -> Trace:
        if line.count(b"{") + line.count(b"[") > MAX_DEPTH:
            return parse_json(line, Trace)
        trace: Trace = hook(decode_line(line), Trace)
        return trace

    return parse


# -- records to JSON ---------------------------------------------------------------------------------


def to_plain(value: Any) -> Any:
    """Turn a record into plain objects for JSON; infinities and NaN of its fields become strings."""
    return _unstructurer().unstructure(value)


def format_json(record: Record, *, indent: int | None = None) -> str:
    """Format a record as JSON.

    Half of a surrogate pair, which UTF-8 cannot encode, becomes an escape.

    Raises:
        InvalidRecord: No reader could read the result: fields made in memory nest too deeply, or hold something that
            JSON does not have.
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


class LineFormatter:
    """Formats traces as lines. Workloads and environments recur, so each is formatted once."""

    def __init__(self) -> None:
        self._formatted: dict[int, tuple[Record, msgspec.Raw]] = {}
        self._unstructure: Callable[[Trace], Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return LineFormatter, ()

    def __call__(self, trace: Trace) -> bytes:
        """The line, without its newline."""
        if self._unstructure is None:
            converter = _make_unstructurer()
            for cls in (Workload, Environment):
                converter.register_unstructure_hook(cls, self._share)
            converter.register_unstructure_hook_func(_is_object, _raw_object)
            self._unstructure = converter.get_unstructure_hook(Trace)
        try:
            return msgspec.json.encode(self._unstructure(trace))
        except (TypeError, ValueError, RecursionError):  # such as a number that is not finite, or half of a surrogate
            return format_json(trace).encode()

    def _share(self, record: Record) -> msgspec.Raw:
        entry = self._formatted.get(id(record))
        if entry is None:
            if len(self._formatted) >= _MAX_FORMATTED:
                self._formatted.clear()
            entry = self._formatted[id(record)] = record, msgspec.Raw(format_json(record).encode())
        return entry[1]


def _raw_object(value: Any) -> msgspec.Raw | None:
    if value is None:
        return None
    text = _FINITE(value)
    if may_be_too_deep(text):
        raise ValueError
    return msgspec.Raw(text.encode())


_FINITE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


@cache
def _unstructurer() -> MsgspecJsonConverter:
    return _make_unstructurer()


def _make_unstructurer() -> MsgspecJsonConverter:
    converter = make_converter()
    converter.register_unstructure_hook(float, _plain_float)
    for kind in _ENUMS:
        converter.register_unstructure_hook(kind, str)
    converter.register_unstructure_hook_factory(_is_list, lambda kind: _plain_list_hook(kind, converter))
    converter.register_unstructure_hook_func(_is_object, _plain_object)
    converter.register_unstructure_hook_factory(attrs.has, lambda cls: _plain_hook(cls, converter))
    return converter


def _plain_hook(cls: Any, converter: MsgspecJsonConverter) -> Callable[[Any], Any]:
    fields: Any = {
        field.name: override(omit_if_default=field.name not in _ALWAYS_WRITTEN)
        for field in attrs.fields(cls)
        if field.name != "unknown_fields"
    }
    made = make_dict_unstructure_fn(cls, converter, unknown_fields=override(omit=True), **fields)
    tag = {"type": TAGS[cls]} if cls in TAGS else {}

    def hook(record: Any) -> Any:
        plain = made(record)
        if tag:
            plain = tag | plain
        return {**plain, **_plain_object(record.unknown_fields)} if record.unknown_fields else plain

    return hook


def _plain_list_hook(kind: Any, converter: MsgspecJsonConverter) -> Callable[[Any], Any]:
    inner = converter.get_unstructure_hook(get_args(kind)[0])
    return lambda value: [inner(item) for item in value]


def _plain_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _plain_object(value: Any) -> Any:
    """Plain objects of fields whose types nothing declares."""
    if isinstance(value, Record):
        return to_plain(value)
    if isinstance(value, float):
        return _plain_float(value)
    if isinstance(value, Mapping):
        return {key: _plain_object(item) for key, item in value.items()}
    if isinstance(value, StrEnum):
        return str(value)
    return [_plain_object(item) for item in value] if isinstance(value, list | tuple) else value
