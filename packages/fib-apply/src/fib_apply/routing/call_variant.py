"""Call variants: value-returning and destination-passing calls of a definition, each with a cache."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import torch
from fib_schema import Definition

from ..key import Axes, SizeReader, compile_size_reader
from .codegen import shapes_expression
from .guards import CallKinds, Guard, GuardOptions, compile_python_guard, make_native_guard
from .native.module import NativeGuards
from .validation import CallValidator

Kernel: TypeAlias = Callable[..., Any]
CacheEntry: TypeAlias = "tuple[Guard, Kernel | None, Callable[[], int]]"
"""A guard, the kernel of calls that pass it (None is the fallback), and the increment of a counter."""

_MAX_ENTRIES = 8192
_PROMOTION_INTERVAL = 16
"""Calls that miss the inline cache before one of them replaces its entry."""
_MAX_LAYOUTS = 4
"""Kinds of valid calls whose sizes are read in a few microseconds."""
_MAX_ALTERNATIVES = 8
"""Entries of the same shapes, e.g. for parameters and tensors, with and without gradients; per kind of entry."""


def _reject_all(*args: Any) -> bool:
    del args
    return False


_BY_GUARD = object()
"""The cache key of all calls in a native table, which finds entries by the sizes that their guards hold."""
_NO_ENTRY: CacheEntry = (_reject_all, None, int)


class CallVariant:
    """One call variant of a definition, with its cache.

    The cache is a native `table` once native guards are loaded and a route is made; until then, it holds entries by
    shapes and an inline cache of one entry. The guard of an entry is authoritative, and a lookup costs as much as a
    guard, so the fast path tries the entry that was used last, or the inline-cache entry, first.

    Readers take no lock: entries are replaced, never edited. The generation rejects entries that were resolved before
    an invalidation. The lock is reentrant, because a signal handler may make calls during a change; a writer
    therefore checks afterwards whether its entry was invalidated meanwhile.

    Args:
        definition: The definition.
        is_destination_passing: Whether outputs are among the arguments.
        is_cached: Whether shapes determine the key; else nothing is cached.
        is_counted: Whether the native table counts the calls that it serves.
        fallback_equivalents: Solutions that are the fallback in another form.
        padded_axis: The axis of padded indices; None if the inputs end at their totals.
    """

    def __init__(
        self,
        definition: Definition,
        *,
        is_destination_passing: bool,
        is_cached: bool,
        is_counted: bool = False,
        fallback_equivalents: frozenset[str] = frozenset(),
        padded_axis: str | None = None,
    ) -> None:
        self.is_destination_passing = is_destination_passing
        self.padded_axis = padded_axis
        self.fallback_equivalents = fallback_equivalents
        self._definition = definition
        self._layouts: list[tuple[Guard, CallKinds]] = []
        self.entries: dict[Any, CacheEntry] = {}
        """The first entry of each shapes; read by the fast path."""
        self.inline_cache: list[CacheEntry] = [_NO_ENTRY]
        """The entry that the fast path tries first."""
        self.count_miss = itertools.cycle([False] * (_PROMOTION_INTERVAL - 1) + [True]).__next__
        """Whether the entry of this call should be promoted; rarely true, because sizes may alternate."""
        self._native: NativeGuards | None = None
        self.table: Any = None
        """The native table, which then holds all entries; None if there is none."""
        self.generation = 0
        """The number of invalidations."""
        self._alternatives: dict[tuple[Any, bool], tuple[CacheEntry, ...]] = {}
        """Further entries by shapes, and whether the fallback serves them: neither kind displaces the other."""
        self._is_cached, self._is_counted = is_cached, is_counted
        self._shapes_of = compile_shapes(definition, is_destination_passing=is_destination_passing)
        self._lock = threading.RLock()

    @cached_property
    def validator(self) -> CallValidator:
        """The validator of its calls; made at the first one."""
        return CallValidator(self._definition, has_outputs=self.is_destination_passing)

    @cached_property
    def _read_sizes(self) -> SizeReader | None:
        problem = self.validator.constraint_problem
        return compile_size_reader(self._definition, problem, has_outputs=self.is_destination_passing)

    def use_native_table(self, native: NativeGuards) -> bool:
        """Use a native table from now on; False if nothing is cached.

        Routes that were made before keep working: they find no entries, and take the slow path.
        """
        if not self._is_cached:
            return False
        with self._lock:
            if self.table is None:
                self._native = native
                self._layouts = []  # before the table: with one, nested tensors reach these guards
                self.table = native.Table(is_counted=self._is_counted)
                self._drop(list(self.entries))
        return True

    def known_call(self, args: Sequence[Any]) -> tuple[Axes, CallKinds] | None:
        """The sizes of a valid call that differs from an earlier one in nothing else; None for all other calls."""
        for guard, kinds in self._layouts:
            if guard(*args):
                axes = None if self._read_sizes is None else self._read_sizes(*args)
                return None if axes is None else (axes, kinds)
        return None

    def remember_call(self, args: Sequence[Any]) -> None:
        """Let `known_call` read the sizes of calls like a valid one, if all inputs are given."""
        layouts = self._layouts  # of one kind of guards: native guards may be loaded meanwhile
        if self._read_sizes is None or len(layouts) >= _MAX_LAYOUTS or any(value is None for value in args):
            return
        if self._read_sizes(*args) is not None:
            guard = self.guard(args, GuardOptions(has_grad=torch.is_grad_enabled(), ignores_sizes=True))
            if guard is not None:
                layouts.append((guard, CallKinds.of_call(args)))

    def guard(self, args: Sequence[Any], options: GuardOptions, kinds: CallKinds | None = None) -> Guard | None:
        """A guard for calls that equal one; None if they cannot be cached."""
        if self._native is None:
            return compile_python_guard(args, options, kinds)
        return make_native_guard(self._native, args, options, kinds)

    def shapes(self, args: Sequence[Any]) -> Any:
        """The cache key of a call; None for calls that cannot be cached."""
        if not self._is_cached:
            return None
        if self.table is not None:
            return _BY_GUARD
        try:
            shapes = self._shapes_of(*args)
            hash(shapes)  # symbolic sizes have no hash: a compiler traces the engine
            return shapes
        except Exception:  # noqa: BLE001 - an argument may be any object
            return None

    def find(self, shapes: Any, args: Sequence[Any]) -> CacheEntry | None:
        """The entry whose guard passes a call."""
        if self.table is not None:
            found: CacheEntry | None = self.table.find(*args)
            return found
        first = self.entries.get(shapes)
        if first is None:
            return None
        of_kernels, of_fallback = (self._alternatives.get((shapes, is_fallback), ()) for is_fallback in (False, True))
        for entry in (first, *of_kernels, *of_fallback):
            if entry[0](*args):
                return entry
        return None

    def install(self, shapes: Any, entry: CacheEntry, generation: int) -> None:
        """Cache an entry, unless it was resolved in an earlier generation."""
        if shapes is None:
            return
        with self._lock:
            if generation != self.generation:
                return
            if self.table is not None:
                self.table.install(entry)
                if generation != self.generation:
                    self.table.clear()
                return
            if len(self.entries) >= _MAX_ENTRIES:
                self._drop(list(itertools.islice(self.entries, _MAX_ENTRIES // 2)))
            if self.inline_cache[0] is _NO_ENTRY:
                self.inline_cache[0] = entry
            if self.entries.setdefault(shapes, entry) is not entry:
                place = shapes, entry[1] is None
                self._alternatives[place] = (*self._alternatives.get(place, ()), entry)[-_MAX_ALTERNATIVES:]
            if generation != self.generation:
                self._drop([shapes])

    def promote(self, shapes: Any, entry: CacheEntry) -> None:
        """Put an entry into the inline cache, if it is still valid.

        The fast path calls this, so it never waits: while another thread holds the lock, nothing changes.
        """
        lock = self._lock
        if not lock.acquire(blocking=False):
            return
        try:
            if self.entries.get(shapes) is entry:
                self.inline_cache[0] = entry
                if self.entries.get(shapes) is not entry:  # a signal handler has invalidated it
                    self.inline_cache[0] = _NO_ENTRY
        finally:
            lock.release()

    def invalidate(self) -> None:
        """Drop all entries; calls are resolved again."""
        with self._lock:
            self.generation += 1
            if self.table is not None:
                self.table.clear()
            self._drop(list(self.entries))

    def _drop(self, shapes: Iterable[Any]) -> None:
        for some in shapes:
            self.entries.pop(some, None)
            for is_fallback in (False, True):
                self._alternatives.pop((some, is_fallback), None)
        self.inline_cache[0] = _NO_ENTRY  # last: a signal handler may have promoted a dropped entry


def compile_shapes(definition: Definition, *, is_destination_passing: bool) -> Callable[..., Any]:
    """A function of a call's arguments that returns the same cache key as the generated code."""
    inputs, outputs = tuple(definition.inputs), tuple(definition.outputs) if is_destination_passing else ()
    names = [f"_{name}" for name in (*inputs, *outputs)]
    expression = shapes_expression(definition, names[: len(inputs)], names[len(inputs) :])
    made: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {expression}")  # noqa: S307 made of identifiers
    return made
