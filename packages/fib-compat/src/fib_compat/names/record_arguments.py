"""Arguments of records that pydantic accepted: unknown keywords are ignored, plain mappings become records.

A constructor is tried first as it is. If it refuses its arguments, the known keywords are validated as a mapping of
fields, so that values which are right cost nothing more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import attrs
from fib_schema import to_plain
from fib_schema.codec import structure

__all__ = ["accept_other_arguments"]

_MARK = "__fib_compat__"
_is_structuring: ContextVar[bool] = ContextVar("_is_structuring", default=False)
"""Whether `structure` calls the constructor below, whose refusal is final."""


def accept_other_arguments(cls: type) -> None:
    """Let the constructor of an attrs record accept unknown keywords and plain mappings; once."""
    original: Callable[..., None] = vars(cls)["__init__"]
    if hasattr(original, _MARK):
        return
    names = [field.name for field in attrs.fields(cls) if field.init]
    positional = [field.name for field in attrs.fields(cls) if field.init and not field.kw_only]

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except (TypeError, ValueError) as error:
            if len(args) > len(positional) or _is_structuring.get():
                raise
            given = {**dict(zip(positional, args, strict=False)), **kwargs}
            known = {name: value for name, value in given.items() if name in names}
            if len(known) == len(given) and not any(map(_is_plain, known.values())):
                raise
            token = _is_structuring.set(True)
            try:
                made: Any = structure(to_plain(known), cls)
            except (TypeError, ValueError):
                if len(known) == len(given):
                    raise error from None  # that of the class, as without fib-compat
                raise
            finally:
                _is_structuring.reset(token)
            _copy_fields(made, self)

    setattr(init, _MARK, True)
    cls.__init__ = init  # type: ignore[misc] # the process-wide class, as `model_methods` adds methods to it


def _is_plain(value: object) -> bool:
    """Whether a value is made of plain mappings or strings, which may stand for records or enumerations."""
    if isinstance(value, (list, tuple)):
        return any(map(_is_plain, value))
    return isinstance(value, (dict, str))


def _copy_fields(source: Any, target: Any) -> None:
    for field in attrs.fields(type(source)):
        object.__setattr__(target, field.name, getattr(source, field.name))
