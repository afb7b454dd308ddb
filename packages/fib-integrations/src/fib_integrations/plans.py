"""What objects were told by their ``plan``, for as long as they live."""

from __future__ import annotations

import weakref
from typing import Any

from .log import logger


class Planned:
    """What one call of ``plan`` said; the next one makes another.

    Args:
        owner: The object.
        value: What the adapter made of the call, or why runs are not covered.
        stamp: What the object's own plan left, to see that it is still this one.
    """

    __slots__ = ("generation", "owner", "passing", "returning", "stamp", "value")

    def __init__(self, owner: weakref.ref[Any], value: Any, stamp: Any) -> None:
        self.owner = owner
        self.value = value
        self.stamp = stamp
        self.generation: object = None
        """What the routes below rest on: they are made anew if something else is in force."""
        self.returning: dict[Any, Any] = {}
        self.passing: dict[Any, Any] = {}


class Plans:
    """Plans by object, weakly. Each write is one of a dictionary: no locks are needed.

    By identity, because looking up a weak reference costs 0.2 us more. An entry goes with its object, before
    another one can have the same identity.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, Planned] = {}

    def remember(self, owner: Any, value: Any, stamp: Any) -> None:
        """Keep what an object was told, instead of what it was told before."""
        place = id(owner)
        try:
            reference = weakref.ref(owner, lambda _: self.by_id.pop(place, None))
        except TypeError:
            logger.warning("%s objects cannot be referred to weakly: their calls are not covered", type(owner).__name__)
            return
        self.by_id[place] = Planned(reference, value, stamp)

    def forget(self, owner: Any = None) -> None:
        """Do not cover an object's calls until it is told anew."""
        self.by_id.pop(id(owner), None)

    def forget_all(self) -> None:
        """The same of all objects."""
        self.by_id.clear()
