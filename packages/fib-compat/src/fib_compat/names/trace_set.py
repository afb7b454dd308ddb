"""TraceSet of the old package: its mappings and lists can be changed in memory.

`fib_schema.TraceSet` is immutable between its ``add_...`` methods. `TraceSet` here is a subclass of it, whose
`definitions`, `solutions`, `workloads` and `traces` are dictionaries and lists that a program may change. Each query
is one of an immutable set of what they hold at that time. Files change by the ``add_...`` methods only.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fib_schema
from fib_schema import Definition, FibError, Solution, Trace

_FIELDS = ("definitions", "solutions", "workloads", "traces")
_METHODS = (
    "definition_names", "solution_names", "get_definition", "get_solution", "to_dict", "counting_traces",
    "filter_traces", "get_best_trace", "get_solution_score", "get_author_score", "rank_authors", "summary", "__repr__",
    "add_definitions", "add_solutions", "add_traces",
)  # fmt: skip
"""Those that read or add records."""


def _changeable(field: str, content: str) -> Any:
    """The property that is a field of a set as dictionaries and lists that a program may change."""
    return property(lambda self: self._view(field), doc=content)


class TraceSet(fib_schema.TraceSet):
    """A data set whose records can be changed in memory; see `fib_schema.TraceSet` for the queries.

    Raises:
        DuplicateName: Two solutions share a name; after a change, the next query raises it.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        definitions: Mapping[str, Definition] | None = None,
        solutions: Mapping[str, Iterable[Solution]] | None = None,
        workloads: Mapping[str, Iterable[Trace]] | None = None,
        traces: Mapping[str, Iterable[Trace]] | None = None,
    ) -> None:
        super().__init__(root, definitions, solutions, workloads, traces)
        self._views: dict[str, dict[str, Any]] = {}
        """The fields that a program may have changed."""
        for field in _FIELDS if definitions or solutions or workloads or traces else ():
            self._view(field)

    @classmethod
    def from_set(cls, other: fib_schema.TraceSet) -> TraceSet:
        """Return a changeable copy of a set, or the set itself if it is changeable."""
        if isinstance(other, cls):
            return other
        if other.root is not None:
            return cls.from_path(other.root)
        return cls(None, other.definitions, other.solutions, other.workloads, other.traces)

    definitions = _changeable("definitions", "The definitions by name.")
    solutions = _changeable("solutions", "The solutions by the name of their definition.")
    workloads = _changeable("workloads", "The workload traces by the name of their definition.")
    traces = _changeable("traces", "The traces by the name of their definition.")

    def for_routing(self) -> fib_schema.TraceSet:
        """This set for fib-apply: its folder if the records are those of the files, else the records in memory."""
        if self.root is not None and not self._views:
            return fib_schema.TraceSet.from_path(self.root)
        return self._current(None)

    def reread_workloads(self) -> None:
        """Add the workloads that were appended to the files since they were read."""
        if self.root is None:
            return
        for name, group in fib_schema.TraceSet.from_path(self.root).workloads.items():
            known = {trace.workload.uuid for trace in self.workloads.get(name, ())}
            if new := [trace for trace in group if trace.workload.uuid not in known]:
                self.workloads.setdefault(name, []).extend(new)

    def _view(self, field: str) -> dict[str, Any]:
        if field not in self._views:
            self._views[field] = dict(_readable(getattr(super(), field)))
        return self._views[field]

    def _show(self, current: fib_schema.TraceSet) -> None:
        """Add what an immutable set has beyond the fields that a program may have changed."""
        for field, view in self._views.items():
            for name, value in _readable(getattr(current, field)):
                if field == "definitions":
                    view[name] = value
                else:
                    group = view.setdefault(name, [])
                    group.extend(value[len(group) :])

    def _current(self, root: Path | None) -> fib_schema.TraceSet:
        """The immutable set of what this one holds now."""
        return fib_schema.TraceSet(root, *map(self._view, _FIELDS))


def _method(name: str) -> Any:
    """The method of `TraceSet` that calls that of the immutable set, and shows a program what it added."""

    def call(self: TraceSet, *arguments: Any, **options: Any) -> Any:
        current: Any = self._current(self.root) if self._views else super(TraceSet, self)
        try:
            return getattr(current, name)(*arguments, **options)
        finally:  # after an error, some of what was to be added may be durable
            self._show(current)

    return functools.wraps(getattr(fib_schema.TraceSet, name))(call)


for _name in _METHODS:
    setattr(TraceSet, _name, _method(_name))


def present(kind: str, names: Iterable[str], known: Collection[str], logger: logging.Logger) -> tuple[str, ...]:
    """Those of the names in settings that a data set has; each of the others is logged."""
    found = tuple(name for name in names if name in known)
    for name in names:
        if name not in found:
            logger.warning("the data set has no %s %r, which the settings name", kind, name)
    return found


def _readable(base: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values of the records that can be read, lists copied; `all_problems` reports the others."""
    for name in base:
        try:
            value = base[name]
        except FibError:
            continue
        yield name, list(value) if isinstance(value, (list, tuple)) else value
