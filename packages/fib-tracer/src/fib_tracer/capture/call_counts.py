"""Counts of the calls of one definition: exact, across threads, in bounded memory.

A call is counted by its axis sizes and layout. The generated callback (`binding`) increments the counter of calls that
are not wanted any more, which `CallCounts.by_key` holds by the key that the callback computes; all other calls go
through `CallCounts.counter`. Beyond `MAX_KEYS` combinations of a definition, or `MAX_TOTAL_KEYS` of a process, calls of
further ones are counted together: each call is counted once, and every count of a combination is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs
from fib_apply.metrics import Counter
from fib_schema.strides import Strides
from fib_schema.traffic import Layout, layout_key, plain_size

MAX_KEYS = 65_536
"""Combinations of one definition: 42 MiB with their keys, for two variable axes."""
MAX_TOTAL_KEYS = 4 * MAX_KEYS
"""Combinations of all definitions of a runtime."""
Increment: TypeAlias = Callable[[], object]


@attrs.define
class KeyLimit:
    """Number of combinations that a runtime may still count. Threads may exceed it by one each."""

    left: int = MAX_TOTAL_KEYS

    def take(self) -> bool:
        """Whether one more may be counted."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True


class CallCounts:
    """Counts of the calls of one definition.

    Args:
        axes: The names of the definition's variable axes, in its order.
        limit: Shared by all definitions of a runtime.
        on_new: Called when a combination is counted for the first time.
    """

    def __init__(self, axes: tuple[str, ...], limit: KeyLimit, on_new: Callable[[], object]) -> None:
        self._axes = axes
        self._limit = limit
        self._on_new = on_new
        self.by_key: dict[Any, Increment] = {}
        """Counters of the calls that need not reach the recorder; call sites hold on to this object."""
        self.clear()

    def clear(self) -> None:
        """Forget all calls."""
        self.by_key.clear()
        self._by_size: dict[tuple[tuple[int, ...], Layout], Counter] = {}
        self._other = Counter()
        self.count_other: Increment = self._other.increment
        """Count a call without a combination: one that does not fit the definition, or comes when the table is full."""

    def counter(self, axes: Mapping[str, int], strides: Mapping[str, Strides] | None) -> Increment:
        """The counter of a combination, or that of other calls if no more combinations are counted.

        Args:
            axes: The sizes of the variable axes.
            strides: Of the inputs that are not contiguous; None if layouts are not told apart.
        """
        size = tuple(axes.values()), None if strides is None else layout_key(strides)
        found = self._by_size.get(size)
        if found is None:
            if len(self._by_size) >= MAX_KEYS or not self._limit.take():
                return self.count_other
            found = self._by_size.setdefault(size, Counter())  # one step, so that threads agree on the counter
            self._on_new()
        return found.increment

    def skip(self, key: Any, increment: Increment) -> None:
        """Count calls of a key without passing them to the recorder from now on, unless there are too many keys.

        Args:
            key: As the callback computes it.
            increment: The counter of these calls.
        """
        if len(self.by_key) < MAX_KEYS and increment is not self.count_other:
            self.by_key[key] = increment

    def total(self) -> int:
        """The number of all calls."""
        return sum(map(int, list(self._by_size.values()))) + int(self._other)

    def to_plain(self) -> dict[str, Any]:
        """The counts as plain objects, for a file of `fib_schema.traffic`."""
        counted = [(size, int(counter)) for size, counter in list(self._by_size.items())]
        sizes = [
            plain_size(dict(zip(self._axes, axes, strict=True)), layout, calls)
            for (axes, layout), calls in counted
            if calls
        ]
        return {"calls": int(self._other) + sum(calls for _, calls in counted), "sizes": sizes}
