"""Counts of calls, exact across threads without a lock.

A tally is an `itertools.count`, whose step is one call of C code: two threads never get the same
number. It costs about 30 ns; where nothing is counted, nothing is paid.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import attrs


class Tally:
    """Counts up."""

    __slots__ = ("_counter", "add")

    def __init__(self) -> None:
        self._counter = itertools.count()
        self.add = self._counter.__next__
        """Counts one more."""

    def __int__(self) -> int:
        return int(repr(self._counter)[len("count(") : -1])  # to read the number otherwise, one would have to count


@attrs.frozen
class DefinitionStats:
    """What became of the calls of one definition."""

    hits: Mapping[str, int]
    """Calls that a chosen solution served, by key."""
    misses: Mapping[str, int]
    """Calls that the fallback served, by reason."""
    errors: Mapping[str, int]
    """Hits that raised, by solution."""
    is_caught: bool = False
    """Whether the fallback served those instead."""

    @property
    def calls(self) -> int:
        """All of them."""
        return sum(self.hits.values()) + sum(self.misses.values())

    @property
    def fallbacks(self) -> int:
        """Those that the fallback served."""
        return sum(self.misses.values()) + (sum(self.errors.values()) if self.is_caught else 0)

    def to_plain(self) -> dict[str, Any]:
        """As plain objects, for JSON."""
        return {
            "calls": self.calls,
            "hits": dict(self.hits),
            "misses": dict(self.misses),
            "fallbacks": self.fallbacks,
            "errors": dict(self.errors),
        }


class Ledger:
    """The tallies of one definition."""

    def __init__(self) -> None:
        self._hits: dict[str, Tally] = {}
        self._misses: dict[str, Tally] = {}
        self._errors: dict[str, Tally] = {}

    def hit(self, key: str) -> Tally:
        """The tally of a key."""
        return self._hits.setdefault(key, Tally())

    def miss(self, reason: str) -> Tally:
        """The tally of a reason."""
        return self._misses.setdefault(reason, Tally())

    def error(self, solution: str) -> Tally:
        """The tally of what a solution raised."""
        return self._errors.setdefault(solution, Tally())

    def read(self, *, is_caught: bool) -> DefinitionStats:
        """What was counted so far.

        Args:
            is_caught: Whether the fallback served the calls of solutions that raised.
        """
        return DefinitionStats(_numbers(self._hits), _numbers(self._misses), _numbers(self._errors), is_caught)


def _numbers(tallies: Mapping[str, Tally]) -> dict[str, int]:
    return {name: number for name, tally in sorted(tallies.items()) if (number := int(tally))}
