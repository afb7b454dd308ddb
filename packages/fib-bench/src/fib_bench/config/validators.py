"""Validators of settings. Their errors state the valid values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from fib_schema import InvalidField, UnknownName

_FIRST_GPU = "cuda:0"
Check = Callable[[object], str]
"""Returns the problem of a value, or an empty string."""
Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def validated(check: Check) -> Validator:
    """An attrs validator that raises `InvalidField` with the problem a check finds."""

    def validate(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if problem := check(value):
            raise InvalidField(f"{type(instance).__name__}.{attribute.name}", problem)

    return validate


def optional(check: Check) -> Check:
    """The check, or None."""
    return lambda value: "" if value is None else check(value)


def whole(*, least: int | None = None, most: int | None = None, because: str = "") -> Check:
    """An integer, not a bool.

    Args:
        least: The smallest valid value.
        most: The largest valid value.
        because: The reason of `most`, for its message.
    """

    def check(value: object) -> str:
        if type(value) is not int:
            return f"must be a whole number, got {value!r}"
        if least is not None and value < least:
            return f"must be at least {least}, got {value}"
        if most is not None and value > most:
            return f"must be at most {most}, got {value}{f': {because}' if because else ''}"
        return ""

    return check


def number(*, least: float = -math.inf, above: float = -math.inf, most: float = math.inf, finite: bool = True) -> Check:
    """A number in a range, without NaN; infinity only if `finite` is False."""

    def check(value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"must be a number, got {value!r}"
        if math.isnan(value) or (finite and math.isinf(value)):
            return f"must be a finite number, got {value}"
        for holds, limit in (
            (value >= least, f"at least {least}"),
            (value > above or above == -math.inf, f"greater than {above}"),
            (value <= most, f"at most {most}"),
        ):
            if not holds:
                return f"must be {limit}, got {value}"
        return ""

    return check


def flag(value: object) -> str:
    """True or False."""
    return "" if type(value) is bool else f"must be true or false, got {value!r}"


def text(value: object) -> str:
    """A non-empty string."""
    return "" if isinstance(value, str) and value else f"must be a name, got {value!r}"


def names(value: object) -> str:
    """A sequence of strings, not one string."""
    if isinstance(value, tuple) and all(isinstance(name, str) for name in value):
        return ""
    return f"must be a list of names, got {value!r}"


def some_of(kind: str, known: Sequence[str]) -> Check:
    """A tuple with one or more of the known names, each once."""

    def check(value: object) -> str:
        if problem := names(value):
            return problem
        assert isinstance(value, tuple)
        unknown = [str(UnknownName(kind, name, tuple(known))) for name in value if name not in known]
        if unknown:
            return "; ".join(unknown)
        return "" if value and len(set(value)) == len(value) else "must name at least one, and none twice"

    return check


def one_of(kind: str, known: Callable[[], Sequence[str]]) -> Check:
    """One of the names that are known at the time of the check."""

    def check(value: object) -> str:
        if not isinstance(value, str):
            return f"must be a name, got {value!r}"
        return "" if value in known() else str(UnknownName(kind, value, tuple(known())))

    return check


def mapping_of(kind: type, what: str) -> Check:
    """A mapping from strings to instances of a class."""

    def check(value: object) -> str:
        try:
            items = dict(value).items()  # type: ignore[call-overload]
        except (TypeError, ValueError):
            return f"must be a mapping from names to {what}, got {value!r}"
        wrong = [key for key, item in items if not (isinstance(key, str) and isinstance(item, kind))]
        return f"must map names to {what}; wrong at {', '.join(map(repr, wrong))}" if wrong else ""

    return check


def as_tuple(value: Any) -> Any:
    """A list as a tuple; other values unchanged, for the check to reject."""
    return tuple(value) if isinstance(value, list) else value


def checked_field(default: Any, check: Check, converter: Callable[[Any], Any] = as_tuple) -> Any:
    """An attrs field with a default and a check; a list becomes a tuple."""
    return attrs.field(default=default, validator=validated(check), converter=converter)


def with_device_numbers(value: Any) -> Any:
    """The name of a device, or a list or tuple of names as a tuple, with ``cuda`` as ``cuda:0``; see `as_tuple`."""
    value = as_tuple(value)
    if isinstance(value, tuple):
        return tuple(map(with_device_numbers, value))
    return _FIRST_GPU if value == "cuda" else value


def mapping_field(validator: Validator) -> Any:
    """An attrs field that is an empty mapping by default."""
    return attrs.field(factory=dict, validator=validator)
