"""TraceSet of the old package: its mappings and lists can be changed in memory.

`fib_schema.TraceSet` is immutable between its ``add_...`` methods. `TraceSet` here is a subclass of it, whose
`definitions`, `solutions`, `workloads` and `traces` are dictionaries and lists that a program may change. Whatever
reads the set compares those that a program has seen with their last known content, and reindexes it if one differs.
Files change by the ``add_...`` methods only.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import fib_schema
from fib_schema import Definition, FibError, Solution, Trace

_FIELDS = ("definitions", "solutions", "workloads", "traces")


class _Synced:
    """An attribute of the immutable set, which is brought up to date before it is read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._key = f"_synced{name}"

    def __get__(self, instance: Any, owner: type) -> Any:
        instance._update()  # noqa: SLF001 - of its class
        return instance.__dict__[self._key]

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self._key] = value


class TraceSet(fib_schema.TraceSet):
    """A data set whose records can be changed in memory; see `fib_schema.TraceSet` for the queries.

    Raises:
        DuplicateName: Two solutions share a name; after a change, the next query raises it.
    """

    _definitions, _workloads, _traces = _Synced(), _Synced(), _Synced()
    _solutions, _solution_names, _owners = _Synced(), _Synced(), _Synced()

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        definitions: Mapping[str, Definition] | None = None,
        solutions: Mapping[str, Iterable[Solution]] | None = None,
        workloads: Mapping[str, Iterable[Trace]] | None = None,
        traces: Mapping[str, Iterable[Trace]] | None = None,
    ) -> None:
        self._views: dict[str, dict[str, Any]] = {}
        """The fields that a program has seen."""
        self._known: dict[str, dict[str, Any]] = {}
        """The content of each, as the immutable set knows it."""
        self._is_updating = False
        super().__init__(root, definitions, solutions, workloads, traces)
        self._differs_from_files = any((definitions, solutions, workloads, traces))

    @classmethod
    def from_set(cls, other: fib_schema.TraceSet) -> TraceSet:
        """Return a changeable copy of a set, or the set itself if it is changeable."""
        if isinstance(other, cls):
            return other
        if other.root is not None:
            return cls.from_path(other.root)
        return cls(None, other.definitions, other.solutions, other.workloads, other.traces)

    @property
    def definitions(self) -> dict[str, Definition]:
        """The definitions by name."""
        return self._view("definitions")

    @property
    def solutions(self) -> dict[str, list[Solution]]:
        """The solutions by the name of their definition."""
        return self._view("solutions")

    @property
    def workloads(self) -> dict[str, list[Trace]]:
        """The workload traces by the name of their definition."""
        return self._view("workloads")

    @property
    def traces(self) -> dict[str, list[Trace]]:
        """The traces by the name of their definition."""
        return self._view("traces")

    def for_routing(self) -> fib_schema.TraceSet:
        """This set for fib-apply: its folder if the records are those of the files, else the records in memory."""
        self._update()
        if self.root is not None and not self._differs_from_files:
            return fib_schema.TraceSet.from_path(self.root)
        return fib_schema.TraceSet(None, *(self._view(name) for name in _FIELDS))

    def reread_workloads(self) -> None:
        """Add the workloads that were appended to the files since they were read."""
        if self.root is None:
            return
        for name, group in fib_schema.TraceSet.from_path(self.root).workloads.items():
            known = {trace.workload.uuid for trace in self.workloads.get(name, ())}
            if new := [trace for trace in group if trace.workload.uuid not in known]:
                self.workloads.setdefault(name, []).extend(new)

    def add_definitions(self, definitions: Iterable[Definition]) -> None:
        """Add definitions, and write each to its file if the set has a root."""
        super().add_definitions(definitions)
        self._show_added()

    def add_solutions(self, solutions: Iterable[Solution]) -> None:
        """Add solutions, and write each to its file if the set has a root."""
        super().add_solutions(solutions)
        self._show_added()

    def add_traces(self, traces: Iterable[Trace]) -> None:
        """Add traces and workload traces; with a root, they are durable when this returns."""
        try:
            super().add_traces(traces)
        finally:  # after an error, some may be durable
            self._show_added()

    def _by_speedup(self, definition: str) -> Any:
        self._update()
        return super()._by_speedup(definition)

    def _view(self, field: str) -> dict[str, Any]:
        if field not in self._views:
            self._views[field] = dict(_readable(self._base(field)))
            self._known[field] = _snapshot(self._views[field])
        return self._views[field]

    def _base(self, field: str) -> Mapping[str, Any]:
        """A mapping of the immutable set."""
        found: Mapping[str, Any] = getattr(fib_schema.TraceSet, field).fget(self)
        return found

    def _update(self) -> None:
        """Reindex the set if a program has changed a dictionary or a list."""
        if self._is_updating or self._known == {field: _snapshot(view) for field, view in self._views.items()}:
            return
        self._is_updating = True
        try:
            contents = fib_schema.TraceSet(None, *(self._view(field) for field in _FIELDS))
            for name in ("_definitions", "_solutions", "_solution_names", "_owners", "_workloads", "_traces"):
                setattr(self, name, getattr(contents, name))
            self._known = {field: _snapshot(view) for field, view in self._views.items()}
            self._fastest.clear()
            self._differs_from_files = True
        finally:
            self._is_updating = False

    def _show_added(self) -> None:
        """Add what was added to the set to the lists that a program has seen."""
        for field, view in self._views.items():
            base = self._base(field)
            for name, value in _readable(base):
                if field == "definitions":
                    view[name] = value
                else:
                    group = view.setdefault(name, [])
                    group.extend(value[len(group) :])
            self._known[field] = _snapshot(view)


def present(kind: str, names: Iterable[str], known: Collection[str], logger: logging.Logger) -> tuple[str, ...]:
    """Those of the names in settings that a data set has; each of the others is logged."""
    found = tuple(name for name in names if name in known)
    for name in names:
        if name not in found:
            logger.warning("the data set has no %s %r, which the settings name", kind, name)
    return found


def _readable(base: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """The values of the records that can be read, lists copied; `all_problems` reports the others."""
    for name in base:
        try:
            value = base[name]
        except FibError:
            continue
        yield name, list(value) if isinstance(value, (list, tuple)) else value


def _snapshot(view: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in view.items()}
