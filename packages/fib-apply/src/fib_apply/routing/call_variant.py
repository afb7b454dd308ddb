"""Call variants: value-returning and destination-passing calls of a definition, each with a table of known calls."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import torch
from fib_schema import Definition

from ..key import Axes, SizeReader, compile_size_reader
from .codegen import shapes_expression
from .guards import Guard, GuardOptions, compile_python_guard, make_native_guard
from .native.module import NativeGuards
from .validation import CallValidator, has_nested

Kernel: TypeAlias = Callable[..., Any]
CacheEntry: TypeAlias = "tuple[Guard, Kernel | None, Callable[[], int]]"
"""A guard, the kernel of calls that pass it (None is the fallback), and the increment of a counter."""

_MAX_SHAPES = 8192
_MAX_LAYOUTS = 4
"""Kinds of valid calls whose sizes are read in a few microseconds."""
_MAX_ENTRIES = 16
"""Entries of the same shapes, e.g. for parameters and tensors, with and without gradients."""


class PythonTable:
    """Entries by the shapes of calls, with the methods of the native table, which replaces it once it is loaded.

    Readers take no lock: entries are replaced, never edited.
    """

    MISS = object()
    """Returned if there is no entry for a call."""

    def __init__(self, definition: Definition, *, is_destination_passing: bool, is_counted: bool) -> None:
        self._shapes_of = compile_shapes(definition, is_destination_passing=is_destination_passing)
        self._is_counted = is_counted
        self._entries: dict[Any, tuple[CacheEntry, ...]] = {}

    def __call__(self, *args: Any) -> Any:
        """The kernel of a call, which is counted."""
        try:
            if has_nested(args):  # guards abort for such a tensor
                return self.MISS
            entries = self._entries[self._shapes_of(*args)]
        except Exception:  # noqa: BLE001 - an argument may be any object
            return self.MISS
        for guard, kernel, count in entries:
            if guard(*args):
                if self._is_counted:
                    count()
                return kernel
        return self.MISS

    def find(self, *args: Any) -> CacheEntry | None:
        """The entry whose guard passes a call."""
        entries = self._entries.get(self._shapes(args), ())
        return next((entry for entry in entries if entry[0](*args)), None)

    def install(self, entry: CacheEntry, args: Sequence[Any]) -> None:
        """Add an entry for calls like one; the oldest shapes and entries make room."""
        shapes = self._shapes(args)
        if shapes is None:
            return
        if len(self._entries) >= _MAX_SHAPES:
            for some in list(itertools.islice(self._entries, _MAX_SHAPES // 2)):
                self._entries.pop(some, None)
        self._entries[shapes] = (*self._entries.get(shapes, ()), entry)[-_MAX_ENTRIES:]

    def clear(self) -> None:
        """Drop all entries."""
        self._entries = {}

    def _shapes(self, args: Sequence[Any]) -> Any:
        """The shapes of a call; None for arguments that have none."""
        try:
            shapes = self._shapes_of(*args)
            hash(shapes)  # symbolic sizes have no hash: a compiler traces the engine
        except Exception:  # noqa: BLE001 - an argument may be any object
            return None
        return shapes


class CallVariant:
    """One call variant of a definition, with its table: a native one once native guards are loaded.

    The generation rejects entries that were resolved before an invalidation. The lock is reentrant, because a signal
    handler may make calls during a change; a writer therefore checks afterwards whether its entry was invalidated
    meanwhile.
    """

    def __init__(
        self,
        definition: Definition,
        fallback_equivalents: frozenset[str] = frozenset(),
        padded_axis: str | None = None,
        *,
        is_destination_passing: bool = False,
        is_cached: bool,
        is_counted: bool = False,
    ) -> None:
        self.is_destination_passing = is_destination_passing
        self.padded_axis = padded_axis
        self.fallback_equivalents = fallback_equivalents
        self._definition = definition
        self._layouts: list[Guard] = []
        self._native: NativeGuards | None = None
        self.table: Any = PythonTable(definition, is_destination_passing=is_destination_passing, is_counted=is_counted)
        """Finds the entries of calls."""
        self.is_native = False
        """Whether the table is a native one, which lets no nested tensor through."""
        self.generation = 0
        """The number of invalidations."""
        self._is_cached, self._is_counted = is_cached, is_counted
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
            if not self.is_native:
                self._native = native
                self._layouts = []  # before `is_native`: with it, nested tensors reach these guards
                self.table.clear()
                self.table = native.Table(is_counted=self._is_counted)
                self.is_native = True
        return True

    def known_call(self, args: Sequence[Any]) -> Axes | None:
        """The sizes of a valid call that differs from an earlier one in nothing else; None for all other calls."""
        for guard in self._layouts:
            if guard(*args):
                return None if self._read_sizes is None else self._read_sizes(*args)
        return None

    def remember_call(self, args: Sequence[Any]) -> None:
        """Let `known_call` read the sizes of calls like a valid one, if all inputs are given."""
        layouts = self._layouts  # of one kind of guards: native guards may be loaded meanwhile
        if self._read_sizes is None or len(layouts) >= _MAX_LAYOUTS or any(value is None for value in args):
            return
        if self._read_sizes(*args) is not None:
            guard = self.guard(args, GuardOptions(has_grad=torch.is_grad_enabled(), ignores_sizes=True))
            if guard is not None:
                layouts.append(guard)

    def guard(self, args: Sequence[Any], options: GuardOptions) -> Guard | None:
        """A guard for calls that equal one; None if they cannot be cached."""
        if not self._is_cached:
            return None
        if self._native is None:
            return compile_python_guard(args, options)
        return make_native_guard(self._native, args, options)

    def find(self, args: Sequence[Any]) -> CacheEntry | None:
        """The entry whose guard passes a call."""
        found: CacheEntry | None = self.table.find(*args) if self._is_cached else None
        return found

    def install(self, entry: CacheEntry, args: Sequence[Any], generation: int) -> None:
        """Cache an entry for calls like one, unless it was resolved in an earlier generation."""
        with self._lock:
            if generation != self.generation:
                return
            if self.is_native:
                self.table.install(entry)
            else:
                self.table.install(entry, args)
            if generation != self.generation:
                self.table.clear()

    def invalidate(self) -> None:
        """Drop all entries; calls are resolved again."""
        with self._lock:
            self.generation += 1
            self.table.clear()


def compile_shapes(definition: Definition, *, is_destination_passing: bool) -> Callable[..., Any]:
    """A function of a call's arguments that returns the shapes which determine all its sizes."""
    inputs, outputs = tuple(definition.inputs), tuple(definition.outputs) if is_destination_passing else ()
    names = [f"_{name}" for name in (*inputs, *outputs)]
    expression = shapes_expression(definition, names[: len(inputs)], names[len(inputs) :])
    made: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {expression}")  # noqa: S307 made of identifiers
    return made
