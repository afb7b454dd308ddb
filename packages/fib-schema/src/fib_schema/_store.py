"""Store of a data set: reads definitions, solutions, workloads and traces, and appends to them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs

from . import data_files
from ._durable import append_in_groups
from ._folder import DataSetFolder
from ._lazy import LazyRecords, SolutionsByDefinition, TraceFiles, TracesByDefinition
from ._legacy import legacy_warnings
from ._record import Record, component_problem
from .codec import LineFormatter, format_json, to_plain
from .definition import Definition
from .display import counted
from .environment import get_fib_dataset_path
from .errors import DataSetNotFound, DuplicateName, FibError, Problem, UnknownName
from .files import atomic_create_all
from .problems import Findings
from .reader import definition_names, holds_legacy_workloads, solution_names
from .solution import Solution
from .trace import Trace
from .workload_log import WorkloadLog

if TYPE_CHECKING:
    import torch


@attrs.frozen
class PartlyAdded(FibError, OSError):
    """Some of many traces could not be written; the others are durable."""

    added: tuple[Trace, ...]
    """The traces that are durable and in memory."""
    total: int
    """Number of all given traces."""
    problem: str
    """The failure and its file; the cause of this exception has the ``errno``."""

    def __str__(self) -> str:
        return (
            f"{len(self.added)} of {self.total} traces were added and are durable, the others were not: "
            f"{self.problem}; add those that are not in `added` again"
        )


class Store(DataSetFolder):
    """The records of a data set, on disk or in memory; see `TraceSet`."""

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        definitions: Mapping[str, Definition] | None = None,
        solutions: Mapping[str, Iterable[Solution]] | None = None,
        workloads: Mapping[str, Iterable[Trace]] | None = None,
        traces: Mapping[str, Iterable[Trace]] | None = None,
    ) -> None:
        super().__init__(root)
        self._found_problems: list[Problem] = []
        self._definitions = LazyRecords(Definition, {}, definitions or {})
        self._solutions: LazyRecords[Solution] = LazyRecords(Solution, {}, {})
        self._solution_names: dict[str, tuple[str, ...]] = {}
        self._owners: dict[str, tuple[str, str]] = {}
        """The definition and the author of each solution."""
        for group in (solutions or {}).values():
            self._index_solutions(group)
        self._workloads = TracesByDefinition(TraceFiles([], ()), _lists(workloads), kind="workloads")
        self._traces = TracesByDefinition(TraceFiles([], ()), _lists(traces))
        self._format_line = LineFormatter()

    @classmethod
    def from_path(cls, path: str | os.PathLike[str] | None = None) -> Self:
        """Open a data set.

        Args:
            path: Its root; None means ``FIB_DATASET_PATH`` or the default below the home folder.

        Raises:
            DataSetNotFound: There is no such directory (a FileNotFoundError). Nothing is created.
        """
        root = get_fib_dataset_path() if path is None else Path(path)
        if not os.path.isdir(root):
            raise DataSetNotFound(str(root))
        self = cls(root)
        self._open_files(os.fspath(root), f"{root.as_posix()}/")
        return self

    def __repr__(self) -> str:
        return (
            f"TraceSet(root={str(self.root)!r}, {counted(len(self._definitions.names), 'definition')}, "
            f"{counted(len(self._solutions.names), 'solution')})"
        )

    @property
    def definitions(self) -> Mapping[str, Definition]:
        """The definitions by name."""
        return self._definitions

    @property
    def solutions(self) -> Mapping[str, list[Solution]]:
        """The solutions by the name of their definition."""
        return SolutionsByDefinition(self._solutions, self._solution_names)

    @property
    def workloads(self) -> Mapping[str, list[Trace]]:
        """The workload traces by the name of their definition."""
        return self._workloads

    @property
    def traces(self) -> Mapping[str, list[Trace]]:
        """The traces by the name of their definition."""
        return self._traces

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Problems of the files read so far, each with its file and line; bad records are skipped."""
        lines = self._workloads.files.problems + self._traces.files.problems
        return tuple(self._found_problems + lines)

    def all_problems(self) -> tuple[Problem, ...]:
        """The problems of all files; reads those that have not been read."""
        for records in (self._definitions, self._solutions):
            for _ in records:
                pass
        for traces in (self._workloads, self._traces):
            for name in traces:
                traces.files.of(name)
        return self.problems

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain objects: ``definitions``, ``solutions``, ``workload``, ``traces``."""
        return {
            "definitions": {name: to_plain(item) for name, item in self.definitions.items()},
            "solutions": _plain_lists(self.solutions),
            "workload": _plain_lists(self.workloads),
            "traces": _plain_lists(self.traces),
        }

    def get_definition(self, name: str) -> Definition:
        """The definition of that name.

        Raises:
            UnknownName: There is none (a KeyError); the message has close matches.
            InvalidRecord: Its file is bad.
        """
        if name not in self._definitions.names:
            raise UnknownName("definition", name, tuple(self._definitions.names))
        return self._definitions[name]

    def get_solution(self, name: str) -> Solution | None:
        """The solution of that name, or None.

        Raises:
            InvalidRecord: Its file is bad.
        """
        return self._solutions[name] if name in self._solutions.names else None

    def definition_names(self) -> tuple[str, ...]:
        """The names of all definitions, also of bad files; no definition is parsed for that."""
        return tuple(self._definitions.names)

    def solution_names(self, def_name: str | None = None) -> tuple[str, ...]:
        """The names of all solutions, or of one definition's, also of bad files; none is parsed for that."""
        if def_name is None:
            return tuple(self._solutions.names)
        return self._solution_names.get(def_name, ())

    def _owner(self, solution_name: str) -> tuple[str, str] | None:
        return self._owners.get(solution_name)

    def add_workload_blob_tensor(self, def_name: str, workload_uuid: str, tensors: Mapping[str, torch.Tensor]) -> str:
        """Store a workload's tensors; they are durable when this returns.

        Returns:
            The file's path relative to the root, for a `SafetensorsInput`.

        Raises:
            NoRoot: The set is in memory only (a ValueError).
            UnknownName: There is no such definition.
            BlobError: There is such a file already, or the uuid is not a file name (a ValueError).
            OSError: It could not be written.
        """
        from .blobs import BlobError, save_tensors

        self._require_root("add_workload_blob_tensor")
        definition = self.get_definition(def_name)
        if problem := component_problem(workload_uuid):
            raise BlobError(workload_uuid, f"no file can be named after this workload: it {problem}")
        path = data_files.blob_file(definition, workload_uuid)
        save_tensors(Path(self._writable(path)), path, tensors)
        return path

    def add_definitions(self, definitions: Iterable[Definition]) -> None:
        """Add definitions, and write each to its file if the set has a root.

        Raises:
            DuplicateName: A definition of that name, or its file, exists; nothing was added.
            OSError: They could not be written; nothing was added.
        """
        new = _by_name("definition", definitions, self._definitions)
        self._write_new("definition", {data_files.definition_file(item): item for item in new.values()})
        self._definitions = self._definitions.with_records(new)

    def add_solutions(self, solutions: Iterable[Solution]) -> None:
        """Add solutions, and write each to its file if the set has a root.

        Raises:
            DuplicateName: A solution of that name, or its file, exists; nothing was added.
            UnknownName: A solution's definition is not in the set; nothing was added.
            OSError: They could not be written; nothing was added.
        """
        new = _by_name("solution", solutions, self._solutions)
        owners = {name: self.get_definition(item.definition) for name, item in new.items()}
        self._write_new("solution", {data_files.solution_file(item, owners[name]): item for name, item in new.items()})
        self._index_solutions(new.values())

    def add_traces(self, traces: Iterable[Trace]) -> None:
        """Add traces and workload traces; with a root, they are durable when this returns.

        Traces of up to 64 files are all added or, after an error, none of them, neither in memory nor on disk. Those of
        more files are added in groups of 64 files (fewer if the process runs out of file descriptors).

        Raises:
            UnknownName: A trace names an unknown definition or solution; nothing was added.
            PartlyAdded: A later group could not be written (an OSError); it has the traces that were added.
            OSError: They could not be written; nothing was added.
        """
        groups: dict[str, list[Trace]] = {}
        lines: dict[str, list[bytes]] = {}
        for trace in traces:
            path = _file_of(trace, self.get_definition(trace.definition), self._owners)
            if self.root is not None:
                path = self._writable(path)
            groups.setdefault(path, []).append(trace)
            lines.setdefault(path, []).append(self._format_line(trace))
        if self.root is None:
            self._remember(groups.values())
            return
        added: list[Trace] = []
        try:
            for paths in append_in_groups(lines):
                self._remember(groups[path] for path in paths)
                added += (trace for path in paths for trace in groups[path])
        except OSError as error:
            if not added:
                raise
            raise PartlyAdded(tuple(added), sum(map(len, groups.values())), str(error)) from error

    def _remember(self, groups: Iterable[list[Trace]]) -> None:
        """Show traces of some files, which are durable or need not be, in later snapshots."""
        for traces in groups:
            if traces[0].evaluation is None:
                self._workloads = self._workloads.with_traces(traces)
            else:
                self._traces = self._traces.with_traces(traces)

    def _write_new(self, kind: str, records: Mapping[str, Record]) -> None:
        """Write records to files that do not exist yet, all or none; nothing without a root."""
        if self.root is None:
            return
        contents = {self._writable(path): f"{format_json(item, indent=2)}\n".encode() for path, item in records.items()}
        try:
            atomic_create_all(contents, keeps_existing=False)
        except FileExistsError as error:
            name = Path(str(error.filename)).stem
            raise DuplicateName(kind, name, str(error.filename), "the one to be added") from error

    def workload_log(self) -> WorkloadLog:
        """A log that appends collected workloads to the files of this set, each once; this object does not see them.

        Raises:
            NoRoot: The set is in memory only.
        """
        self._require_root("workload_log")
        return WorkloadLog(self._writable)

    def _index_solutions(self, solutions: Iterable[Solution]) -> None:
        new = _by_name("solution", solutions, self._solutions)
        names = dict(self._solution_names)
        for solution in new.values():
            names[solution.definition] = (*names.get(solution.definition, ()), solution.name)
        self._owners = {**self._owners, **{s.name: (s.definition, s.author) for s in new.values()}}
        self._solutions = self._solutions.with_records(new)
        self._solution_names = names

    def _open_files(self, root: str, prefix: str) -> None:
        """List the files of all folders and read the names of definitions and solutions."""
        findings = Findings()
        folders = {data_files.DEFINITIONS: ".json", data_files.SOLUTIONS: ".json", data_files.WORKLOADS: ".jsonl"}
        files = {
            folder: data_files.list_files(root, folder, suffix, findings, prefix=prefix)
            for folder, suffix in {**folders, data_files.TRACES: ".jsonl"}.items()
        }
        legacy = dict.fromkeys(file for file in files[data_files.TRACES] if holds_legacy_workloads(file, prefix))
        for file in legacy:
            findings.add(*legacy_warnings(file.name, {data_files.LEGACY_PLACE: 1}))
        definitions = definition_names(files[data_files.DEFINITIONS], findings)
        found = solution_names(files[data_files.SOLUTIONS], findings)
        problems = [problem for problem in findings.problems if problem.code != data_files.OTHER_SUFFIX]
        self._found_problems = problems
        self._definitions = LazyRecords(Definition, definitions, {}, problems)
        self._solution_names, self._owners = found.of_definition, found.owners
        self._solutions = LazyRecords(Solution, found.files, {}, problems)
        workloads = [*files[data_files.WORKLOADS], *legacy]
        traces = [file for file in files[data_files.TRACES] if file not in legacy]
        self._workloads = TracesByDefinition(TraceFiles(workloads, self._definitions.names), {}, kind="workloads")
        self._traces = TracesByDefinition(TraceFiles(traces, self._definitions.names), {})


def _file_of(trace: Trace, definition: Definition, owners: Mapping[str, tuple[str, str]]) -> str:
    """The path of a trace's file below the root."""
    if trace.solution is None:
        return data_files.workloads_file(definition)
    if trace.solution not in owners:
        raise UnknownName("solution", trace.solution, tuple(owners))
    return data_files.traces_file(owners[trace.solution][1], definition)


def _by_name(kind: str, records: Iterable[Any], existing: LazyRecords[Any]) -> dict[str, Any]:
    new: dict[str, Any] = {}
    for record in records:
        if record.name in existing.names:
            raise DuplicateName(kind, record.name, existing.source(record.name), "the one to be added")
        if record.name in new:
            raise DuplicateName(kind, record.name, "one to be added", "another to be added")
        new[record.name] = record
    return new


def _lists(groups: Mapping[str, Iterable[Trace]] | None) -> dict[str, list[Trace]]:
    return {name: list(group) for name, group in (groups or {}).items()}


def _plain_lists(groups: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
    return {name: [to_plain(item) for item in group] for name, group in groups.items()}
