"""Base class of the records, and the validators and converters of their fields.

A record is immutable and keeps fields that this version does not know (`unknown_fields`): what a newer writer stored
may change what a solution does. Each check raises `InvalidField` with the remedy. Classes of which a data set has
hundreds of thousands check the usual case of all fields in one expression, and explain only what is not usual.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, NoReturn, TypeVar

import attrs

from .errors import InvalidField

K = TypeVar("K")
V = TypeVar("V")
E = TypeVar("E", bound=StrEnum)

MAX_SIZE = 2**63 - 1
"""The largest size of an axis: that of a tensor is a 64-bit integer."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_MISSPELT = 60  # twice the longest field; comparing takes time quadratic in the length
_MIN_SIMILARITY = 0.82  # a swapped pair of letters in 'language' has 0.88; 'building' has 0.8 with 'binding'
_NO_SEPARATORS = str.maketrans("", "", "_- ")
_MAX_NAME_BYTES = 200  # leaves room for ".jsonl" and a hash below the usual 255


class FrozenDict(dict[K, V]):
    """A dict that cannot be changed, so that frozen records are frozen all the way."""

    __slots__ = ()

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("this mapping is part of a frozen record; make a changed copy with attrs.evolve")

    def __missing__(self, key: object) -> NoReturn:
        from .errors import UnknownName

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


Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


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


def check_kind(record: object, field: str, value: object, *kinds: type) -> None:
    """Validate that a value is of one of some types; of strings and bools, no other type counts."""
    if (type(value) in kinds) if kinds[0] in _WORDS else isinstance(value, kinds):
        return
    wanted = " or ".join(_WORDS.get(kind, kind.__name__) for kind in kinds)
    raise fail(record, field, f"expected {wanted}, got {describe(value)}")


_WORDS: Mapping[type, str] = {str: "a string", bool: "true or false", type(None): "null"}


def check_name(record: object, field: str, value: Any) -> None:
    """Validate a name that becomes part of a path."""
    if type(value) is not str:
        check_kind(record, field, value, str)
    if problem := component_problem(value):
        raise fail(record, field, f"{problem}; names are single path components")


def name(record: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Validate a name that becomes part of a path."""
    check_name(record, attribute.name, value)


def instance_of(*types: type) -> Validator:
    """Validate that a value is one of `types`."""

    def check(record: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        check_kind(record, attribute.name, value, *types)

    return check


text = instance_of(str)
optional_text = instance_of(str, type(None))
boolean = instance_of(bool)


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
        value = to_float(getattr(record, field))
        if type(value) is not float:
            raise fail(record, field, f"expected a number, got {describe(value)}")
        if value < 0:
            raise fail(record, field, f"must not be negative, got {value}")
        object.__setattr__(record, field, value)


def mapping_of(*types: type) -> Validator:
    """Validate a mapping from strings to instances of `types`."""

    def check(record: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        for key, item in value.items():
            field = f"{attribute.name}[{key!r}]"
            if type(key) is not str:
                raise fail(record, field, f"keys are strings, got {describe(key)}")
            check_kind(record, field, item, *types)

    return check


def tuple_of(kind: type) -> Validator:
    """Validate a tuple of instances of `kind`."""

    def check(record: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        for index, item in enumerate(value):
            check_kind(record, f"{attribute.name}[{index}]", item, kind)

    return check


tuple_of_text = tuple_of(str)


def to_float(value: Any) -> Any:
    """Turn an int that a float can hold into one, and leave the rest to the validator."""
    try:
        return float(value) if type(value) is int else value
    except OverflowError:
        return value


def to_tuple(value: Any) -> Any:
    """Turn a list into a tuple; refuse a bare string, which would become its letters."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidField("sequence", f"expected a list, got {describe(value)}")
    return value if type(value) is tuple else tuple(value)


def member_of(kind: type[E], what: str, value: object) -> E:
    """Convert a string to a member of `kind`, naming the members if there is none."""
    if isinstance(value, str):
        for member in kind:
            if value == member.value:
                return member
    raise InvalidField(what, f"{value!r} is unknown (known: {', '.join(kind)})")


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that another one misspells; None if there is none.

    Case, hyphens and underscores are ignored. A name that contains a known one as a word, such as
    ``description_de``, is taken for a name of its own.
    """
    if len(name) > _MAX_MISSPELT:
        return None
    import difflib

    words = f"_{name}_"
    plain = {_without_separators(one): one for one in known if f"_{one}_" not in words}
    found = difflib.get_close_matches(_without_separators(name), plain, n=1, cutoff=_MIN_SIMILARITY)
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
