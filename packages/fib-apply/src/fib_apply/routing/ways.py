"""A way of calling (outputs are returned, or passed) with what has been resolved for it, by shapes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from fib_compile.forking import ForkSafeLock
from fib_schema import Definition

from .codegen import key_expression
from .guards import Check, Guard

Kernel: TypeAlias = Callable[..., Any]
Entry: TypeAlias = "tuple[Check, Kernel | None, Callable[[], int]]"
"""A check, a kernel (None is the fallback), and a tally."""

_MOST_ENTRIES = 8192
_FAVOURED_AFTER = 16
"""Calls that others than the favourite serve until one of them takes its place."""
_MOST_ALIKE = 8
"""Patterns of calls with the same shapes: parameters and tensors, with and without gradients; of each kind of entry."""


def _admits_none(*args: Any) -> bool:
    del args
    return False


_NO_ENTRY: Entry = (_admits_none, None, int)


class Way:
    """One way of calling a definition.

    Entries are replaced, never edited: who reads needs no lock. A generation keeps entries out that
    rest on what is no more. One of them is the favourite, whose check is tried before shapes are looked up:
    a check alone decides, and the look-up takes as long as it does. A signal's handler may make calls as well,
    in the midst of a change: the thread that holds the lock may take it once more, and whoever writes looks
    afterwards whether that has been forgotten.

    Args:
        definition: What is computed.
        is_passing: Whether outputs are among the arguments.
        is_memoised: Whether shapes decide; else nothing is kept.
        own: Solutions that are the fallback in another form.
    """

    def __init__(
        self, definition: Definition, *, is_passing: bool, is_memoised: bool, own: frozenset[str] = frozenset()
    ) -> None:
        self.is_passing = is_passing
        self.own = own
        self.guard = Guard(definition, has_outputs=is_passing)
        self.entries: dict[Any, Entry] = {}
        """By shapes; the short way looks here."""
        self.favourite: list[Entry] = [_NO_ENTRY]
        """An entry that the short way tries first."""
        self.is_time = itertools.cycle([False] * (_FAVOURED_AFTER - 1) + [True]).__next__
        """Whether an entry that serves a call should become the favourite: sizes may come in turns."""
        self.generation = 0
        self._alike: dict[Any, tuple[Entry, ...]] = {}
        self._refused: dict[Any, tuple[Entry, ...]] = {}
        self._is_memoised = is_memoised
        self._shapes_of = _shapes_of(definition, is_passing=is_passing)
        self._lock = ForkSafeLock()

    def shapes(self, args: Sequence[Any]) -> Any:
        """What entries of such calls go by; None for calls that can have none."""
        if not self._is_memoised:
            return None
        try:
            return self._shapes_of(*args)
        except (AttributeError, TypeError):
            return None

    def find(self, shapes: Any, args: Sequence[Any]) -> Entry | None:
        """The entry of a call, the first one of its shapes or another."""
        first = self.entries.get(shapes)
        if first is None:
            return None
        for entry in (first, *self._alike.get(shapes, ()), *self._refused.get(shapes, ())):
            if entry[0](*args):
                return entry
        return None

    def install(self, shapes: Any, entry: Entry, generation: int) -> None:
        """Leave an entry, unless it was resolved in an earlier generation."""
        if shapes is None:
            return
        with self._lock:
            if generation != self.generation:
                return
            if len(self.entries) >= _MOST_ENTRIES:
                self._drop(list(itertools.islice(self.entries, _MOST_ENTRIES // 2)))
            if self.favourite[0] is _NO_ENTRY:
                self.favourite[0] = entry
            if self.entries.setdefault(shapes, entry) is not entry:
                others = self._refused if entry[1] is None else self._alike
                others[shapes] = (*others.get(shapes, ()), entry)[-_MOST_ALIKE:]
            if generation != self.generation:
                self._drop([shapes])

    def favour(self, shapes: Any, entry: Entry) -> None:
        """Have an entry tried first from now on, if it has not been forgotten meanwhile.

        The short way comes here, and never waits: while somebody else changes something, all stays as it is.
        """
        lock = self._lock
        if not lock.acquire(blocking=False):
            return
        try:
            if self.entries.get(shapes) is entry:
                self.favourite[0] = entry
                if self.entries.get(shapes) is not entry:  # a signal's handler has forgotten it
                    self.favourite[0] = _NO_ENTRY
        finally:
            lock.release()

    def forget(self) -> None:
        """Have all calls resolved anew."""
        with self._lock:
            self.generation += 1
            self._drop(list(self.entries))

    def _drop(self, shapes: Iterable[Any]) -> None:
        for some in shapes:
            for entries in (self.entries, self._alike, self._refused):
                entries.pop(some, None)
        self.favourite[0] = _NO_ENTRY  # last: a signal's handler may have favoured what was about to go


def _shapes_of(definition: Definition, *, is_passing: bool) -> Callable[..., Any]:
    """A function of a call's arguments that gives what the generated code looks up."""
    inputs, outputs = tuple(definition.inputs), tuple(definition.outputs) if is_passing else ()
    names = [f"_{name}" for name in (*inputs, *outputs)]
    expression = key_expression(definition, names[: len(inputs)], names[len(inputs) :])
    made: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {expression}")  # noqa: S307 made of identifiers
    return made
