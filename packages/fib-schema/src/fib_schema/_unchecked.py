"""Constructors that skip converters and validators, for values that were checked already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from ._record import Record

R = TypeVar("R", bound=Record)


def unchecked_constructor(cls: type[R]) -> Callable[..., R]:
    """A function of all fields of `cls`, in the order of ``attrs.fields``, that only sets them.

    It is generated, as attrs generates ``__init__``, because a loop over the fields costs as much
    again as setting them.
    """
    slots = {name: slot for base in cls.__mro__ for name, slot in vars(base).items()}
    names = [field.name for field in attrs.fields(cls)]
    lines = [f"def construct({', '.join(names)}):", " record = new(cls)"]
    lines += [f" set_{name}(record, {name})" for name in names]
    lines.append(" return record")
    scope: dict[str, Any] = {"cls": cls, "new": cls.__new__}
    scope |= {f"set_{name}": slots[name].__set__ for name in names}
    exec("\n".join(lines), scope)  # noqa: S102 the text is made of the names of our own fields
    constructor: Callable[..., R] = scope["construct"]
    return constructor
