"""Unknown keys that look like misspelt fields.

Records keep keys that they do not know. A key is reported only if it resembles a field that its object lacks: such a
field has its default, and what the author wrote has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import attrs

from ._checks import closest
from ._decoding import field_names
from ._record import Record
from .errors import Problem, Severity

MISSPELT_CODE = "misspelt-key"
"""The code of problems that `misspelling_warnings` makes."""
_MAX_UNKNOWN_KEYS = 100  # an object with more is not a record with a misspelt field, and comparing names takes time


@attrs.frozen
class Misspelling:
    """A key that resembles a field which its object lacks."""

    path: str
    """JSON path of the object."""
    key: str
    field: str


def find_misspellings(record: Record, path: str = "$") -> Iterator[Misspelling]:
    """The misspelt keys of a record and of all records inside it."""
    if record.unknown_fields:
        cls: Any = type(record)  # mypy takes the hash of an unhashable record for that of its class
        yield from (Misspelling(path, key, field) for key, field in _misspelt(cls, record.source_keys or ()))
    for field in attrs.fields(type(record)):
        yield from _find_inside(getattr(record, field.name), f"{path}.{field.name}")


def misspelling_warnings(source: str, found: Mapping[Misspelling, int]) -> list[Problem]:
    """A warning for each misspelt key of a file, with its count of records."""
    return [
        Problem(
            source,
            one.path,
            f"has the unknown key {one.key!r}, which has no effect{f' ({count} lines)' if count > 1 else ''}; "
            f"did you mean {one.field!r}?",
            Severity.WARNING,
            MISSPELT_CODE,
        )
        for one, count in found.items()
    ]


def _find_inside(value: Any, path: str) -> Iterator[Misspelling]:
    if isinstance(value, Record):
        yield from find_misspellings(value, path)
    elif isinstance(value, dict) and isinstance(next(iter(value.values()), None), Record):
        for name, item in value.items():
            yield from find_misspellings(item, f"{path}[{name!r}]")
    elif isinstance(value, tuple) and value and isinstance(value[0], Record):
        for index, item in enumerate(value):
            yield from find_misspellings(item, f"{path}[{index}]")


@lru_cache(maxsize=1024)
def _misspelt(cls: Any, keys: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Misspelt keys with the fields that they resemble."""
    known = field_names(cls)
    unknown = [key for key in keys if key not in known]
    if len(unknown) > _MAX_UNKNOWN_KEYS:
        return ()
    absent = sorted(known.difference(keys))
    return tuple((key, field) for key in unknown if (field := closest(key, absent)))
