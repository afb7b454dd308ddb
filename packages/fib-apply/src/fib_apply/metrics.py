"""Metrics: counts of calls, exact across threads without a lock, and the reasons for misses."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import attrs

from .key import ApplyKey

BEING_BUILT = "being built"
"""The only reason for a miss that ends by itself."""
FALLBACK_IS_BEST = "the fallback is the best"
"""The reason for a miss whose key is recorded: the best solution is the fallback in another form."""
NOTHING_BUILT = "nothing built"
"""The reason for a miss whose solutions could not be built, or not be loaded."""
QUARANTINED = "quarantined"
"""The reason for a miss whose solutions are left out, at least one of them because it failed in a call."""

_MAX_KEYS = 4096
_OTHER_KEYS = "other keys"


class Counter:
    """A counter. An increment is one call of C code, so that no two threads get the same number; it takes 30 ns."""

    __slots__ = ("_count", "increment")

    def __init__(self) -> None:
        self._count = itertools.count()
        self.increment = self._count.__next__
        """Add one."""

    def __int__(self) -> int:
        return int(repr(self._count)[len("count(") : -1])  # `next` would count


@attrs.frozen
class DefinitionStats:
    """Counts of the calls of one definition."""

    hits: Mapping[str, int]
    """Calls that a selected solution served, by key."""
    misses: Mapping[str, int]
    """Calls that the fallback served, by reason."""
    errors: Mapping[str, int]
    """Hits that raised, by solution."""
    is_caught: bool = False
    """Whether the fallback then served the call."""

    @property
    def calls(self) -> int:
        """All calls."""
        return sum(self.hits.values()) + sum(self.misses.values())

    @property
    def fallbacks(self) -> int:
        """Calls that the fallback served."""
        return sum(self.misses.values()) + (sum(self.errors.values()) if self.is_caught else 0)

    def to_plain(self) -> dict[str, Any]:
        """The counts as plain objects, for JSON."""
        return {
            "calls": self.calls,
            "hits": dict(self.hits),
            "misses": dict(self.misses),
            "fallbacks": self.fallbacks,
            "errors": dict(self.errors),
        }


class CallMetrics:
    """The counters of one definition."""

    def __init__(self) -> None:
        self._hits: dict[ApplyKey | str, Counter] = {}
        self._misses: dict[str, Counter] = {}
        self._errors: dict[str, Counter] = {}

    def hit(self, key: ApplyKey | str) -> Counter:
        """The counter of hits of a key or its text; one for all keys beyond the first `_MAX_KEYS`."""
        if len(self._hits) >= _MAX_KEYS and key not in self._hits:
            key = _OTHER_KEYS
        return self._hits.get(key) or self._hits.setdefault(key, Counter())

    def miss(self, reason: str) -> Counter:
        """The counter of misses for a reason."""
        return self._misses.get(reason) or self._misses.setdefault(reason, Counter())

    def error(self, solution: str) -> Counter:
        """The counter of errors of a solution."""
        return self._errors.setdefault(solution, Counter())

    def snapshot(self, *, is_caught: bool) -> DefinitionStats:
        """The current counts.

        Args:
            is_caught: Whether the fallback serves calls whose solution raised.
        """
        return DefinitionStats(_values(self._hits), _values(self._misses), _values(self._errors), is_caught)


def _values(counters: Mapping[Any, Counter]) -> dict[str, int]:
    """The counts by text, sorted; keys of equal texts are counted together."""
    found: dict[str, int] = {}
    for name, counter in list(counters.items()):  # other threads add some
        text = str(name)
        found[text] = found.get(text, 0) + int(counter)
    return {text: found[text] for text in sorted(found) if found[text]}
