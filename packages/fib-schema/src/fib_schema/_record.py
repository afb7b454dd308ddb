"""Base class of the model classes: immutable records that remember how their source was written.

Public data has fields that this version does not know. A record keeps them (`unknown_fields`) and
the order of its source's keys (`source_keys`), so that reading and writing a file loses and changes
nothing.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

import attrs

K = TypeVar("K")
V = TypeVar("V")


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


@attrs.frozen(kw_only=True)
class Record:
    """Base of every class that is stored as a JSON object."""

    unknown_fields: FrozenDict[str, Any] = attrs.field(default=NO_FIELDS, converter=FrozenDict, repr=False)
    """Fields of the source that this version does not know; written back as they were."""
    source_keys: tuple[str, ...] | None = attrs.field(default=None, repr=False, eq=False)
    """The keys of the source in their order, or None for a record made in memory."""
