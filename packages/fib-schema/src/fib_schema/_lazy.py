"""Mappings of a TraceSet: snapshots that parse files on first use."""

from __future__ import annotations

import gc
import warnings
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, KeysView, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

from ._legacy import LEGACY_CODE
from ._record import Record
from .data_files import DataFile
from .display import counted
from .errors import DataWarning, InvalidRecord, Problem, UnknownName
from .problems import Findings
from .reader import read_json, read_traces
from .solution import Solution
from .trace import Trace

R = TypeVar("R", bound=Record)
D = TypeVar("D")


class LazyRecords(Mapping[str, R], Generic[R]):
    """One record per file, by name, parsed when it is asked for.

    Iteration, ``len``, ``in`` and ``get`` leave out a file without a valid record, and its problems are
    reported. Only ``[name]`` raises an `InvalidRecord` that says what is wrong with it.
    """

    def __init__(
        self,
        cls: type[R],
        files: Mapping[str, DataFile],
        records: Mapping[str, R],
        problems: list[Problem] | None = None,
    ) -> None:
        self._cls = cls
        self._problems: list[Problem] = [] if problems is None else problems
        self._files = files
        self._records = dict(records)
        self._invalid: dict[str, InvalidRecord] = {}
        self._names = dict.fromkeys([*files, *records])

    @property
    def names(self) -> KeysView[str]:
        """The names of all files and records; nothing is parsed."""
        return self._names.keys()

    def __getitem__(self, name: str) -> R:
        if name not in self._names:
            raise UnknownName(self._cls.__name__.lower(), str(name), tuple(self._names))
        record = self._records.get(name) or self._read(name)
        if record is None:
            raise self._invalid[name]
        return record

    def _read(self, name: str) -> R | None:
        """The record of a file; None if it is invalid. Problems are reported when the file is read first."""
        if name in self._invalid:
            return None
        file, findings = self._files[name], Findings()
        parsed = read_json(file, self._cls, findings)
        if parsed.record is not None:
            self._records[name] = parsed.record
        else:
            self._invalid[name] = InvalidRecord(self._cls.__name__, tuple(findings.errors))
        self._problems += findings.problems
        return parsed.record

    def __iter__(self) -> Iterator[str]:
        return (name for name in list(self.names) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        if name in self._records or not isinstance(name, str) or name not in self._files:
            return name in self._records
        is_known = name in self._invalid
        is_valid = self._read(name) is not None
        if not is_valid and not is_known:
            shown = f"skipped {self._invalid[name].problems[0]}"
            warnings.warn(shown, DataWarning, stacklevel=3)
        return is_valid

    @overload
    def get(self, name: str, default: None = None) -> R | None: ...

    @overload
    def get(self, name: str, default: D) -> R | D: ...

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 this is `get`

    def __repr__(self) -> str:
        return f"<{len(self.names)} {self._cls.__name__} records: {_shortened(self.names)}>"

    def source(self, name: str) -> str:
        """The file that a record comes from."""
        file = self._files.get(name)
        return file.name if file else "<memory>"

    def with_records(self, records: Mapping[str, R]) -> LazyRecords[R]:
        """A copy with more records in memory."""
        later = LazyRecords(self._cls, self._files, {**self._records, **records}, self._problems)
        later._invalid = self._invalid
        return later


class SolutionsByDefinition(Mapping[str, list[Solution]]):
    """The valid solutions of each definition that a file or record names, by the definition's name."""

    def __init__(self, solutions: Mapping[str, Solution], names: Mapping[str, tuple[str, ...]]) -> None:
        self._solutions = solutions
        self._names = names

    def __getitem__(self, definition: str) -> list[Solution]:
        if definition not in self._names:
            raise UnknownName("definition with solutions", str(definition), tuple(self._names))
        found = (self._solutions.get(name) for name in self._names[definition])
        return [solution for solution in found if solution is not None]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, definition: object) -> bool:
        return definition in self._names

    def __repr__(self) -> str:
        return f"<solutions of {counted(len(self), 'definition')}: {_shortened(self)}>"


class TraceFiles:
    """The traces of a data set's JSON Lines files, read file by file when a definition is asked for.

    A file whose stem names a definition holds the traces of that definition. A file whose stem names
    none is read first. A record that contradicts its file is kept under its own definition.
    """

    def __init__(self, files: Iterable[DataFile], definitions: Container[str]) -> None:
        self.problems: list[Problem] = []
        self._of_definition: dict[str, list[DataFile]] = {}
        self._anonymous: list[DataFile] = []
        self._traces: dict[str, list[Trace]] = {}
        for file in files:
            if file.stem in definitions:
                self._of_definition.setdefault(file.stem, []).append(file)
                self._traces[file.stem] = []
            else:
                self._anonymous.append(file)

    def names(self) -> KeysView[str]:
        """The definitions that have a file or a record that was read."""
        self._read_anonymous()
        return self._traces.keys()

    def of(self, definition: str) -> list[Trace]:
        """The traces of a definition that have been read so far, its own files among them."""
        self._read_anonymous()
        for file in self._of_definition.pop(definition, ()):
            self._read(file)
        return self._traces.get(definition, [])

    def _read_anonymous(self) -> None:
        while self._anonymous:
            self._read(self._anonymous.pop(0))

    def _read(self, file: DataFile) -> None:
        findings = Findings()
        with _paused_gc():
            traces = [trace for _, trace in read_traces(file, findings)]
        for definition, group in grouped(traces).items():
            self._traces.setdefault(definition, []).extend(group)
        self.problems += findings.problems
        if errors := findings.errors:
            shown = f"{counted(len(errors), 'problem')} in {file.path}; bad lines were skipped: {errors[0]}"
            warnings.warn(shown, DataWarning, stacklevel=6)
        if legacy := [problem for problem in findings.problems if problem.code == LEGACY_CODE]:
            warnings.warn(str(legacy[0]), DataWarning, stacklevel=6)


@contextmanager
def _paused_gc() -> Iterator[None]:
    """Pause the cyclic collector, which takes 85 % of the time of making many records; they have no cycles.

    Afterwards the records are put into the oldest generation. Visiting them first took 1.8 of 4.2 s for 200,000 traces.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # what a program has frozen stays so
                gc.freeze()
                gc.unfreeze()
            gc.enable()


class TracesByDefinition(Mapping[str, list[Trace]]):
    """A snapshot of the traces of each definition, by the definition's name."""

    def __init__(self, files: TraceFiles, added: Mapping[str, list[Trace]], *, kind: str = "traces") -> None:
        self.files = files
        self.kind = kind
        self._added = {definition: (traces, len(traces)) for definition, traces in added.items()}
        """Lists that later snapshots extend, each with its length in this one: adding a trace copies no others."""

    def __getitem__(self, definition: str) -> list[Trace]:
        if definition not in self:
            raise UnknownName(f"definition with {self.kind}", str(definition), tuple(self))
        traces, count = self._added.get(definition, ([], 0))
        return self.files.of(definition) + traces[:count]

    def __iter__(self) -> Iterator[str]:
        return iter(list(dict.fromkeys([*self.files.names(), *self._added])))

    def __len__(self) -> int:
        return len(self.files.names() | self._added.keys())

    def __contains__(self, definition: object) -> bool:
        return definition in self._added or definition in self.files.names()

    def __repr__(self) -> str:
        return f"<{self.kind} of {counted(len(self), 'definition')}: {_shortened(self)}>"

    def with_traces(self, traces: Iterable[Trace]) -> TracesByDefinition:
        """A later snapshot, with more traces in memory."""
        later = TracesByDefinition(self.files, {}, kind=self.kind)
        later._added = dict(self._added)
        for definition, group in grouped(traces).items():
            known, count = self._added.get(definition, ([], 0))
            if len(known) != count:  # a later snapshot has extended it
                known = known[:count]
            known.extend(group)
            later._added[definition] = known, len(known)
        return later


def grouped(traces: Iterable[Trace]) -> dict[str, list[Trace]]:
    """Traces by the name of their definition."""
    groups: defaultdict[str, list[Trace]] = defaultdict(list)
    for trace in traces:
        groups[trace.definition].append(trace)
    return groups


def _shortened(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:6]) + (", ..." if len(shown) > 6 else "")
