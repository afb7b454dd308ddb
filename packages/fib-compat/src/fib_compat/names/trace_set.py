"""TraceSet of the old package: its mappings and lists can be changed in memory.

`fib_schema.TraceSet` is immutable between its ``add_...`` methods. `TraceSet` here is a subclass of it, whose
`definitions`, `solutions`, `workloads` and `traces` are mappings of lists that a program may change. Each query
compares the lists that a program has seen with their last known content, and reindexes the set if one differs. Files
change by the ``add_...`` methods only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from operator import is_
from pathlib import Path
from typing import Any, Self, TypeVar

import fib_schema
from fib_schema import Definition, FibError, Solution, Trace, parse_json
from fib_schema.files import walk

__all__ = ["TraceSet"]

R = TypeVar("R")
_FIELDS = ("definitions", "solutions", "workloads", "traces")


class _Groups(MutableMapping[str, R]):
    """A mapping of a set that can be changed; values are copied from the set when they are first read.

    Args:
        base: Returns the mapping of the set.
        copy: Makes a value that the program may change.
        freeze: Makes a snapshot of a value, to detect changes.
    """

    def __init__(
        self, base: Callable[[], Mapping[str, Any]], copy: Callable[[Any], R], freeze: Callable[[R], tuple[Any, ...]]
    ) -> None:
        self._base, self._copy, self._freeze = base, copy, freeze
        self._values: dict[str, R] = {}
        self._known: dict[str, tuple[Any, ...]] = {}
        """The content of each value that was read, as the set knows it."""
        self._removed: set[str] = set()

    def __getitem__(self, name: str) -> R:
        if name not in self._values:
            if name in self._removed:
                raise KeyError(name)
            self._values[name] = value = self._copy(self._base()[name])
            self._known[name] = self._freeze(value)
        return self._values[name]

    def __setitem__(self, name: str, value: R) -> None:
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self._values.pop(name, None)
        self._known.pop(name, None)
        self._removed.add(name)

    def __iter__(self) -> Iterator[str]:
        base = [name for name in self._base() if name not in self._removed or name in self._values]
        known = set(base)
        return iter([*base, *(name for name in self._values if name not in known)])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self._values or (name not in self._removed and name in self._base())

    def __repr__(self) -> str:
        return repr(dict(self))

    def is_changed(self) -> bool:
        """Whether a value differs from what the set knows."""
        return bool(self._removed) or any(
            name not in self._known or not _is_same(self._known[name], self._freeze(value))
            for name, value in self._values.items()
        )

    def mark_known(self) -> None:
        """Record that the set has the current values."""
        self._known = {name: self._freeze(value) for name, value in self._values.items()}
        self._removed.clear()

    def extend_from_base(self) -> None:
        """Append to each list what was added to the set since it was last known."""
        base = self._base()
        for name, value in self._values.items():
            if isinstance(value, list) and name in base:
                value.extend(base[name][len(self._known[name]) :])
                self._known[name] = self._freeze(value)


def _is_same(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    return len(first) == len(second) and all(map(is_, first, second))


def _read_traces(path: Path) -> Iterator[Trace]:
    """The readable records of a file; validation reports the others."""
    for line in path.read_bytes().splitlines():
        try:
            yield parse_json(line, Trace)
        except FibError:
            continue


def _keep(value: R) -> R:
    return value


def _one(value: object) -> tuple[object, ...]:
    return (value,)


class TraceSet(fib_schema.TraceSet):
    """A data set whose records can be changed in memory; see `fib_schema.TraceSet` for the queries.

    Args:
        root: The directory, or None for memory only.
        definitions: Definitions by name.
        solutions: Solutions by the name of their definition.
        workloads: Workload traces by the name of their definition.
        traces: Traces by the name of their definition.

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
        self._views: dict[str, _Groups[Any]] = {
            "definitions": _Groups(lambda: self._base("definitions"), _keep, _one),
            **{name: _Groups(lambda name=name: self._base(name), list, tuple) for name in _FIELDS[1:]},  # type: ignore[misc]
        }
        self._differs_from_files = any((definitions, solutions, workloads, traces))

    @classmethod
    def from_path(cls, path: str | os.PathLike[str] | None = None) -> Self:
        """Open a data set; None means ``FIB_DATASET_PATH`` or the default.

        Raises:
            DataSetNotFound: There is no such directory (a FileNotFoundError).
        """
        return super().from_path(path)

    @classmethod
    def from_set(cls, other: fib_schema.TraceSet) -> TraceSet:
        """Return a changeable copy of a set, or the set itself if it is changeable."""
        if isinstance(other, cls):
            return other
        if other.root is not None:
            return cls.from_path(other.root)
        return cls(None, other.definitions, other.solutions, other.workloads, other.traces)

    # -- records, as mappings that can be changed ------------------------------------------------------

    @property
    def definitions(self) -> MutableMapping[str, Definition]:
        """The definitions by name."""
        return self._views["definitions"]

    @property
    def solutions(self) -> MutableMapping[str, list[Solution]]:
        """The solutions by the name of their definition."""
        return self._views["solutions"]

    @property
    def workloads(self) -> MutableMapping[str, list[Trace]]:
        """The workload traces by the name of their definition."""
        return self._views["workloads"]

    @property
    def traces(self) -> MutableMapping[str, list[Trace]]:
        """The traces by the name of their definition."""
        return self._views["traces"]

    def _base(self, field: str) -> Mapping[str, Any]:
        """A mapping of the immutable set."""
        prop: property = getattr(fib_schema.TraceSet, field)
        assert prop.fget is not None
        found: Mapping[str, Any] = prop.fget(self)
        return found

    def _update(self) -> None:
        """Reindex the set if a program has changed a mapping or a list."""
        if not any(view.is_changed() for view in self._views.values()):
            return
        contents = fib_schema.TraceSet(None, *(dict(self._views[name]) for name in _FIELDS))
        for name in ("_definitions", "_solutions", "_solution_names", "_owners", "_workloads", "_traces"):
            setattr(self, name, getattr(contents, name))
        for view in self._views.values():
            view.mark_known()
        self._fastest.clear()
        self._differs_from_files = True

    def for_routing(self) -> fib_schema.TraceSet:
        """This set for fib-apply: its folder if the records are those of the files, else the records in memory."""
        self._update()
        if self.root is not None and not self._differs_from_files:
            return self
        return fib_schema.TraceSet(None, *(self._base(name) for name in _FIELDS))

    def reread_workloads(self) -> None:
        """Add the workloads that were appended to the files since they were read."""
        if self.root is None:
            return
        names = set(self.definition_names())
        for entry in walk(self.root / "workloads"):
            name = Path(entry.name).stem
            if entry.name.endswith(".jsonl") and name in names:
                known = {trace.workload.uuid for trace in self.workloads.get(name, ())}
                new = [trace for trace in _read_traces(Path(entry.path)) if trace.workload.uuid not in known]
                if new:
                    self.workloads.setdefault(name, []).extend(new)

    # -- queries and additions, which see changes ------------------------------------------------------

    def get_definition(self, name: str) -> Definition:
        """The definition of that name.

        Raises:
            UnknownName: There is none (a KeyError).
        """
        self._update()
        return super().get_definition(name)

    def get_solution(self, name: str) -> Solution | None:
        """The solution of that name, or None."""
        self._update()
        return super().get_solution(name)

    def definition_names(self) -> tuple[str, ...]:
        """The names of all definitions."""
        self._update()
        return super().definition_names()

    def solution_names(self, def_name: str | None = None) -> tuple[str, ...]:
        """The names of all solutions, or of one definition's."""
        self._update()
        return super().solution_names(def_name)

    def _owner(self, solution_name: str) -> tuple[str, str] | None:
        self._update()
        return super()._owner(solution_name)

    def _by_speedup(self, definition: str) -> Any:
        self._update()
        return super()._by_speedup(definition)

    def add_definitions(self, definitions: Iterable[Definition]) -> None:
        """Add definitions, and write each to its file if the set has a root."""
        self._update()
        super().add_definitions(definitions)

    def add_solutions(self, solutions: Iterable[Solution]) -> None:
        """Add solutions, and write each to its file if the set has a root."""
        self._update()
        super().add_solutions(solutions)
        self._views["solutions"].extend_from_base()

    def add_traces(self, traces: Iterable[Trace]) -> None:
        """Add traces and workload traces; with a root, they are durable when this returns."""
        self._update()
        try:
            super().add_traces(traces)
        finally:  # after an error, some may be durable
            self._views["workloads"].extend_from_base()
            self._views["traces"].extend_from_base()
