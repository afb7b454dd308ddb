"""Base class of the records, and the validators and converters of their fields.

A record is immutable and keeps fields that this version does not know (`unknown_fields`): what a newer writer stored
may change what a solution does. Its values are checked against the types of its fields (`check_types`); validators
check what types do not say. Each check raises `InvalidField` with the remedy. Classes of which a data set has hundreds
of thousands check the usual case of all fields in one expression, and explain only what is not usual.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import cache, lru_cache
from types import UnionType
from typing import Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import attrs

from .errors import InvalidField, UnknownName, close_matches

K = TypeVar("K")
V = TypeVar("V")
E = TypeVar("E", bound=StrEnum)

MAX_SIZE = 2**63 - 1
"""The largest size of an axis: that of a tensor is a 64-bit integer."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MIN_SIMILARITY = 0.82  # a swapped pair of letters in 'language' has 0.88; 'building' has 0.8 with 'binding'
_NO_SEPARATORS = str.maketrans("", "", "_- ")
_MAX_PATH = 1000  # systems take 4,096 bytes, the folder's own path included
_MAX_NAME_BYTES = 200  # leaves room for ".jsonl" and a hash below the usual 255


class FrozenDict(dict[K, V]):
    """A dict that cannot be changed, so that frozen records are frozen all the way."""

    __slots__ = ()

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("this mapping is part of a frozen record; make a changed copy with attrs.evolve")

    def __missing__(self, key: object) -> NoReturn:
        raise UnknownName("key", str(key), tuple(map(str, self)))

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)

    def __copy__(self) -> FrozenDict[K, V]:
        return self


NO_FIELDS: FrozenDict[str, Any] = FrozenDict()


def to_mapping(value: Any) -> FrozenDict[str, Any]:
    """Freeze a mapping; an already frozen one passes through."""
    if type(value) is FrozenDict:
        return value
    if not isinstance(value, Mapping):
        raise InvalidField("mapping", f"expected an object, got {describe(value)}")
    return FrozenDict(value)


def to_optional_mapping(value: Any) -> FrozenDict[str, Any] | None:
    """Freeze a mapping; None passes through."""
    return None if value is None else to_mapping(value)


@attrs.frozen(kw_only=True)
class Record:
    """Base of every class that is stored as a JSON object."""

    unknown_fields: FrozenDict[str, Any] = attrs.field(default=NO_FIELDS, converter=to_mapping, repr=False)
    """Fields of the source that this version does not know; written back as they were."""

    def __attrs_post_init__(self) -> None:
        check_types(self)


def fail(record: object, field: str, problem: str) -> InvalidField:
    """The error for one field of a record under construction."""
    name = getattr(record, "name", None)
    owner = type(record).__name__ + (f" {name!r}" if isinstance(name, str) else "")
    return InvalidField(f"{owner}.{field}" if field else owner, problem)


@lru_cache(maxsize=8192)
def component_problem(name: str) -> str | None:
    """Say why `name` cannot be one component of a path, or None if it can."""
    if not name:
        return "is empty"
    if name in {".", ".."}:
        return f"{name!r} would leave its folder"
    if "/" in name or "\\" in name:
        return f"{name!r} contains a path separator"
    if _CONTROL.search(name):
        return f"{name!r} contains a control character"
    if not name.isascii() and _SURROGATE.search(name):
        return f"{name!r} contains half of a surrogate pair, which no file name can"
    if len(name.encode("utf-8", "surrogatepass")) > _MAX_NAME_BYTES:
        return f"is longer than {_MAX_NAME_BYTES} bytes"
    return None


def relative_path_problem(path: str) -> str | None:
    """Say why `path` is not a normalised relative POSIX path below its folder, or None if it is."""
    if not path:
        return "is empty"
    if len(path) > _MAX_PATH:
        return f"has {len(path)} characters; write at most {_MAX_PATH}"
    if path.startswith("/"):
        return f"{path!r} is absolute; use a relative path"
    for part in path.split("/"):
        if not part:
            return f"{path!r} has an empty component; write it without '//' and a trailing '/'"
        if part == ".":
            return f"{path!r} is not normalised; write it without '.'"
        if problem := component_problem(part):
            return problem
    return None


def check_types(record: object) -> None:
    """Validate the values of all fields of a record by their types; of strings and bools, no other type counts."""
    cls: Any = type(record)  # mypy takes the hash of an unhashable record for that of its class
    for field, kind in _types(cls).items():
        if problem := _type_problem(field, getattr(record, field), kind):
            raise fail(record, *problem)


@cache
def _types(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in attrs.fields(cls) if field.name != "unknown_fields"}


def _type_problem(place: str, value: Any, kind: Any) -> tuple[str, str] | None:
    """The place in a field and the problem of a value of another type; None if it has the type."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if type(value) in kinds:
        return None
    container, arguments = get_origin(kinds[0]), get_args(kinds[0])
    if container is None or not isinstance(value, container):
        plain = tuple(get_origin(one) or one for one in kinds)
        if plain[0] not in _WORDS and isinstance(value, plain):
            return None
        return place, f"expected {' or '.join(_WORDS.get(one, one.__name__) for one in plain)}, got {describe(value)}"
    if arguments[-1] is Any:
        return None
    if container is tuple:
        found = (_type_problem(f"{place}[{index}]", item, arguments[0]) for index, item in enumerate(value))
    else:
        if key := next((key for key in value if type(key) is not str), None):
            return f"{place}[{key!r}]", f"keys are strings, got {describe(key)}"
        found = (_type_problem(f"{place}[{key!r}]", item, arguments[1]) for key, item in value.items())
    return next(filter(None, found), None)


_WORDS: Mapping[type, str] = {str: "a string", bool: "true or false", type(None): "null"}


def check_text(record: object, field: str, value: Any) -> None:
    """Validate a string."""
    if type(value) is not str:
        raise fail(record, field, f"expected a string, got {describe(value)}")


def name(record: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Validate a name that becomes part of a path."""
    problem = component_problem(value) if type(value) is str else f"expected a string, got {describe(value)}"
    if problem:
        raise fail(record, attribute.name, f"{problem}; names are single path components")


def size_problem(value: object) -> str | None:
    """Say why a value is not a size of an axis, or None if it is."""
    if type(value) is not int:
        return f"expected an integer, got {describe(value)}"
    if value < 0:
        return f"must be at least 0, got {short_repr(value)}"
    if value > MAX_SIZE:
        return f"must be below 2**63, got {short_repr(value)}"
    return None


def axis_size(record: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Validate an int (no bool, no float) that can be the size of a tensor."""
    if problem := size_problem(value):
        raise fail(record, attribute.name, problem)


def check_numbers(record: object, *fields: str) -> None:
    """Validate floats of at least 0 and turn integers into them; NaN and infinity are values too."""
    for field in fields:
        value = getattr(record, field)
        if type(value) is int:
            with suppress(OverflowError):
                value = float(value)
        if type(value) is not float:
            raise fail(record, field, f"expected a number, got {describe(value)}")
        if value < 0:
            raise fail(record, field, f"must not be negative, got {value}")
        object.__setattr__(record, field, value)


def to_tuple(value: Any) -> Any:
    """Turn a list into a tuple; refuse a bare string, which would become its letters."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidField("sequence", f"expected a list, got {describe(value)}")
    return value if type(value) is tuple else tuple(value)


def member_of(kind: type[E], what: str, value: object) -> E:
    """Convert a string to a member of `kind`, naming the members if there is none."""
    if type(value) is kind:
        return value
    if isinstance(value, str) and value in set(kind):
        return kind(value)
    raise InvalidField(what, f"{value!r} is unknown (known: {', '.join(kind)})")


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that another one misspells; None if there is none.

    Case, hyphens and underscores are ignored. A name that contains a known one as a word, such as
    ``description_de``, is taken for a name of its own.
    """
    words = f"_{name}_"
    plain = {_without_separators(one): one for one in known if f"_{one}_" not in words}
    found = close_matches(_without_separators(name), plain, cutoff=_MIN_SIMILARITY)
    return plain[found[0]] if found else None


def _without_separators(name: str) -> str:
    return name.casefold().translate(_NO_SEPARATORS)


def describe(value: object) -> str:
    """Describe a value by its JSON type and its shortened text."""
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    kind = kinds.get(type(value), type(value).__name__)
    return kind if value is None else f"{kind} {short_repr(value)}"


def short_repr(value: object) -> str:
    """The `repr` of a value in at most 40 characters."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python converts; deep nesting
        return "that is too large to be shown"
    return shown if len(shown) <= 40 else shown[:37] + "..."
