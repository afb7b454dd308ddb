"""TraceSet: a data set of definitions, solutions, workloads and traces, on disk or in memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _layout
from ._best import BestTraces
from ._checks import component_problem
from ._durable import append_lines
from ._fast_traces import NotOrdinary, trace_formatter
from ._headers import definition_names, solution_names
from ._lazy import LazyRecords, SolutionsByDefinition, TraceFiles, TracesByDefinition
from ._older import holds_older_workloads, older_notices
from .codec import format_json, save_json_file, to_plain
from .definition import Definition
from .environment import get_fib_dataset_path
from .errors import DataSetNotFound, DuplicateName, NoRoot, Problem, UnknownName
from .ranking import League, ScoreBoard, SpeedupMetrics, TraceSetSummary
from .solution import Solution
from .trace import Trace
from .workload_log import WorkloadLog

if TYPE_CHECKING:
    import torch


class TraceSet:
    """A data set of definitions, solutions, workloads and traces.

    With a root it is a view of a directory: opening lists files and reads names, everything else
    is parsed when it is asked for. Without one it lives in memory. What `definitions`, `solutions`,
    `workloads` and `traces` return are snapshots; after an `add_...` ask again.

    Args:
        root: The directory, or None for memory only.
        definitions: Definitions by name.
        solutions: Solutions by the name of their definition.
        workloads: Workload traces by the name of their definition.
        traces: Traces by the name of their definition.

    Raises:
        DuplicateName: Two solutions share a name.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        definitions: Mapping[str, Definition] | None = None,
        solutions: Mapping[str, Iterable[Solution]] | None = None,
        workloads: Mapping[str, Iterable[Trace]] | None = None,
        traces: Mapping[str, Iterable[Trace]] | None = None,
    ) -> None:
        self.root = None if root is None else Path(root)
        self._found_problems: list[Problem] = []
        self._definitions = LazyRecords(Definition, {}, definitions or {})
        self._solutions: LazyRecords[Solution] = LazyRecords(Solution, {}, {})
        self._solution_names: dict[str, tuple[str, ...]] = {}
        self._authors: dict[str, str] = {}
        for group in (solutions or {}).values():
            self._remember_solutions(group)
        self._workloads = TracesByDefinition(TraceFiles([], ()), _lists(workloads))
        self._traces = TracesByDefinition(TraceFiles([], ()), _lists(traces))
        self._writable_paths: dict[str, str] = {}
        self._format_ordinary: Callable[[Trace], bytes] | None = None
        self._best = BestTraces()
        self._scores = ScoreBoard()

    @classmethod
    def from_path(cls, path: str | os.PathLike[str] | None = None) -> TraceSet:
        """Open a data set.

        Args:
            path: Its root; None means ``FIB_DATASET_PATH`` or the default below the home folder.

        Raises:
            DataSetNotFound: There is no such directory (a FileNotFoundError). Nothing is created.
            DuplicateName: Two definitions or two solutions share a name (a ValueError).
        """
        root = get_fib_dataset_path() if path is None else Path(path)
        if not root.is_dir():
            raise DataSetNotFound(str(root))
        self = cls(root)
        problems = self._found_problems
        files = definition_names(_layout.list_files(root, _layout.DEFINITIONS, ".json", problems))
        self._definitions = LazyRecords(Definition, files, {}, problems)
        names = solution_names(_layout.list_files(root, _layout.SOLUTIONS, ".json", problems))
        self._solution_names, self._authors = names.of_definition, names.author
        self._solutions = LazyRecords(Solution, names.files, {}, problems)
        self._workloads, self._traces = self._open_lines(root)
        return self

    def __repr__(self) -> str:
        return (
            f"TraceSet(root={str(self.root)!r}, {len(self._definitions)} definitions, {len(self._solutions)} solutions)"
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
        """What was found wrong, and skipped, in the files read so far."""
        lines = self._workloads.files.problems + self._traces.files.problems
        return tuple(self._found_problems + lines)

    @property
    def definitions_path(self) -> Path:
        """The folder of the definitions."""
        return self._rooted("definitions_path") / _layout.DEFINITIONS

    @property
    def solutions_path(self) -> Path:
        """The folder of the solutions."""
        return self._rooted("solutions_path") / _layout.SOLUTIONS

    @property
    def workloads_path(self) -> Path:
        """The folder of the workloads."""
        return self._rooted("workloads_path") / _layout.WORKLOADS

    @property
    def traces_path(self) -> Path:
        """The folder of the traces."""
        return self._rooted("traces_path") / _layout.TRACES

    @property
    def blob_path(self) -> Path:
        """The folder of tensors."""
        return self._rooted("blob_path") / "blob"

    @property
    def blob_workloads_path(self) -> Path:
        """The folder of the workloads' tensors."""
        return self._rooted("blob_workloads_path") / _layout.BLOB_WORKLOADS

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
            UnknownName: There is none; says what comes close (a KeyError).
            InvalidRecord: Its file is bad.
        """
        if name not in self._definitions:
            raise UnknownName("definition", name, tuple(self._definitions))
        return self._definitions[name]

    def get_solution(self, name: str) -> Solution | None:
        """The solution of that name, or None."""
        return self._solutions.get(name)

    def solution_names(self, def_name: str | None = None) -> tuple[str, ...]:
        """The names of all solutions, or of one definition's; no solution is parsed for that."""
        if def_name is None:
            return tuple(self._solutions)
        return self._solution_names.get(def_name, ())

    def filter_traces(self, def_name: str, atol: float = 1e-2, rtol: float = 1e-2) -> list[Trace]:
        """The passing traces of a definition within error bounds, in the order they were made.

        Args:
            def_name: The definition's name.
            atol: Largest `max_absolute_error` to accept.
            rtol: Largest `max_relative_error` to accept.
        """
        return self._best.within(self._traces, def_name, atol, rtol)

    def get_best_trace(
        self,
        def_name: str,
        axes: Mapping[str, int] | None = None,
        max_abs_error: float = 1e-2,
        max_rel_error: float = 1e-2,
        *,
        allow_flags: Collection[str] = (),
    ) -> Trace | None:
        """The passing trace with the largest speedup, or None if no trace qualifies.

        Args:
            def_name: The definition's name.
            axes: Consider only workloads with exactly these axis values; None means all.
            max_abs_error: Largest `max_absolute_error` to accept.
            max_rel_error: Largest `max_relative_error` to accept.
            allow_flags: Flags (of `UNRANKED_FLAGS`) with which a trace qualifies all the same.
        """
        return self._best.best(self._traces, def_name, axes, max_abs_error, max_rel_error, allow_flags)

    def get_solution_score(
        self, solution_name: str, baseline_author: str = "baseline", *, allow_flags: Collection[str] = ()
    ) -> SpeedupMetrics | None:
        """The mean speedup of a solution over the baseline author's, on workloads that both passed.

        Of several traces on one workload the one with the lowest latency counts. If any trace of
        the solution has failed, the score is 0.

        Args:
            solution_name: The solution.
            baseline_author: Whose solution of the same definition has a speedup of 1.
            allow_flags: Flags (of `UNRANKED_FLAGS`) with which traces count all the same.

        Returns:
            The score; None if the solution is unknown, is the baseline, or has no workload to compare.

        Raises:
            ScoringError: The baseline author has no solution or several for the definition, or a
                passing trace has an invalid latency (a ValueError).
        """
        return self._league(allow_flags).solution_score(solution_name, baseline_author)

    def get_author_score(
        self,
        author: str,
        baseline_author: str = "baseline",
        op_type: str | None = None,
        definition_name: str | None = None,
        *,
        allow_flags: Collection[str] = (),
    ) -> SpeedupMetrics | None:
        """The mean, over definitions in scope, of the author's best solution's score.

        Args:
            author: Whose solutions to score.
            baseline_author: Whose solutions have a speedup of 1.
            op_type: Only definitions of this op_type.
            definition_name: Only this definition.
            allow_flags: Flags (of `UNRANKED_FLAGS`) with which traces count all the same.

        Returns:
            The score, or None if the author has no solution in scope that can be scored.

        Raises:
            UnknownName: There is no such definition (a KeyError).
            ScoringError: As `get_solution_score`.
            ValueError: Both `op_type` and `definition_name` are given.
        """
        scope = self._in_scope(op_type, definition_name)
        return self._league(allow_flags).author_score(author, baseline_author, scope)

    def rank_authors(
        self,
        baseline_author: str = "baseline",
        op_type: str | None = None,
        definition_name: str | None = None,
        *,
        allow_flags: Collection[str] = (),
    ) -> list[tuple[str, SpeedupMetrics]]:
        """Every author with a score, the best first; equal scores in the order of names.

        Definitions without any solution are not in scope. Traces with a flag of `UNRANKED_FLAGS`
        do not count unless `allow_flags` names it.

        Raises:
            UnknownName: There is no such definition (a KeyError).
            ScoringError: A definition in scope has no solution or several of the baseline author,
                or a passing trace has an invalid latency (a ValueError).
            ValueError: Both `op_type` and `definition_name` are given.
        """
        return self._league(allow_flags).ranking(baseline_author, self._in_scope(op_type, definition_name))

    def summary(
        self,
        baseline_author: str = "baseline",
        op_type: str | None = None,
        definition_name: str | None = None,
        *,
        allow_flags: Collection[str] = (),
    ) -> TraceSetSummary:
        """Counts of traces in scope, and the authors ranked over definitions that have a baseline.

        Raises:
            UnknownName: There is no such definition (a KeyError).
            ScoringError: A passing trace in scope has an invalid latency (a ValueError).
            ValueError: Both `op_type` and `definition_name` are given.
        """
        scope = self._in_scope(op_type, definition_name)
        league = self._league(allow_flags)
        ranked = [name for name in scope if league.has_one_baseline(name, baseline_author)]
        groups = [self._traces.get(name, []) for name in self._definitions_in_scope(op_type, definition_name)]
        passed = sum(trace.is_successful() for group in groups for trace in group)
        total = sum(map(len, groups))
        rankings = tuple(league.ranking(baseline_author, ranked))
        unranked = tuple(name for name in scope if name not in ranked)
        return TraceSetSummary(total, passed, total - passed, rankings, unranked)

    def _league(self, allow_flags: Collection[str]) -> League:
        return League(self._solution_names, self._authors, self._traces, self._scores, frozenset(allow_flags))

    def _in_scope(self, op_type: str | None, definition_name: str | None) -> list[str]:
        """Definitions in scope that have solutions."""
        names = self._definitions_in_scope(op_type, definition_name)
        return [name for name in names if self._solution_names.get(name)]

    def _definitions_in_scope(self, op_type: str | None, definition_name: str | None) -> list[str]:
        if op_type is not None and definition_name is not None:
            raise ValueError("give op_type or definition_name, not both")
        if definition_name is not None:
            return [self.get_definition(definition_name).name]
        names = list(self._definitions)
        return names if op_type is None else [n for n in names if self._definitions[n].op_type == op_type]

    def backup_traces(self) -> None:
        """Copy the traces to ``traces_backup_<time>`` beside their folder.

        Raises:
            NoRoot: The set is in memory only.
            FileExistsError: There is such a backup already.
        """
        source = self.traces_path
        stamp = datetime.now().astimezone().strftime("%Y%m%d_%H%M%S_%f")
        target = source.with_name(f"{source.name}_backup_{stamp}")
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            target.mkdir()

    def add_workload_blob_tensor(self, def_name: str, workload_uuid: str, tensors: Mapping[str, torch.Tensor]) -> str:
        """Store a workload's tensors; they are on the disk when this returns.

        Returns:
            The file's path relative to the root, for a `SafetensorsInput`.

        Raises:
            NoRoot: The set is in memory only (a ValueError).
            UnknownName: There is no such definition.
            BlobError: There is such a file already, or the uuid is no file name (a ValueError).
            OSError: It could not be written.
        """
        from .blobs import BlobError, save_tensors

        definition = self.get_definition(def_name)
        if problem := component_problem(workload_uuid):
            raise BlobError(workload_uuid, f"no file can be named after this workload: it {problem}")
        path = _layout.blob_file(definition, workload_uuid)
        self._rooted("add_workload_blob_tensor")
        save_tensors(Path(self._writable(path)), path, tensors)
        return path

    def get_workload_blob_tensor(self, path_str: str) -> dict[str, torch.Tensor]:
        """Read a workload's tensors to the CPU.

        Args:
            path_str: The file's path relative to the root.

        Raises:
            BlobError: There is no such file below the root, or it is bad.
        """
        from .blobs import load_tensors

        return load_tensors(self.root, path_str)

    def add_definitions(self, definitions: Iterable[Definition]) -> None:
        """Add definitions, and write each to its file if the set has a root.

        Raises:
            DuplicateName: A definition of that name exists; nothing was added.
        """
        new = _by_name("definition", definitions, self._definitions)
        if self.root is not None:
            for definition in new.values():
                save_json_file(definition, self._writable(_layout.definition_file(definition)))
        self._definitions = self._definitions.with_records(new)

    def add_solutions(self, solutions: Iterable[Solution]) -> None:
        """Add solutions, and write each to its file if the set has a root.

        Raises:
            DuplicateName: A solution of that name exists; nothing was added.
            UnknownName: A solution's definition is not in the set; nothing was added.
        """
        new = _by_name("solution", solutions, self._solutions)
        owners = {name: self.get_definition(item.definition) for name, item in new.items()}
        if self.root is not None:
            for name, solution in new.items():
                path = _layout.solution_file(solution, owners[name])
                save_json_file(solution, self._writable(path))
        self._remember_solutions(new.values())

    def add_traces(self, traces: Iterable[Trace]) -> None:
        """Add traces and workload traces; with a root, they are on the disk when this returns.

        All or nothing: after an error neither memory nor disk has any of them.

        Raises:
            UnknownName: A trace names an unknown definition or solution.
            OSError: They could not be written.
        """
        evaluated: list[Trace] = []
        workloads: list[Trace] = []
        files: dict[str, list[bytes]] = {}
        for trace in traces:
            (workloads if trace.evaluation is None else evaluated).append(trace)
            files.setdefault(self._file_of(trace), []).append(self._line(trace))
        later_traces = self._traces.with_traces(evaluated) if evaluated else self._traces
        later_workloads = self._workloads.with_traces(workloads) if workloads else self._workloads
        if self.root is not None:
            append_lines({self._writable(path): lines for path, lines in files.items()})
        self._traces, self._workloads = later_traces, later_workloads

    def workload_log(self) -> WorkloadLog:
        """What appends collected workloads to the files of this set, each once; the set itself does not see them.

        Raises:
            NoRoot: The set is in memory only.
        """
        self._rooted("workload_log")
        return WorkloadLog(self._writable)

    def _line(self, trace: Trace) -> bytes:
        """A trace as one line, in the fast way where that is sure to be right."""
        if self._format_ordinary is None:
            self._format_ordinary = trace_formatter()
        try:
            return self._format_ordinary(trace)
        except NotOrdinary:
            return format_json(trace).encode()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_format_ordinary": None}

    def _file_of(self, trace: Trace) -> str:
        definition = self.get_definition(trace.definition)
        if trace.solution is None:
            return _layout.workloads_file(definition)
        if trace.solution not in self._authors:
            raise UnknownName("solution", trace.solution, tuple(self._authors))
        return _layout.traces_file(self._authors[trace.solution], definition)

    def _remember_solutions(self, solutions: Iterable[Solution]) -> None:
        new = _by_name("solution", solutions, self._solutions)
        names = dict(self._solution_names)
        for solution in new.values():
            names[solution.definition] = (*names.get(solution.definition, ()), solution.name)
        self._authors = {**self._authors, **{s.name: s.author for s in new.values()}}
        self._solutions = self._solutions.with_records(new)
        self._solution_names = names

    def _open_lines(self, root: Path) -> tuple[TracesByDefinition, TracesByDefinition]:
        """The workloads and the traces; older sets keep the former among the latter."""
        problems = self._found_problems
        workloads = _layout.list_files(root, _layout.WORKLOADS, ".jsonl", problems)
        traces = _layout.list_files(root, _layout.TRACES, ".jsonl", problems)
        older = {file: None for file in traces if holds_older_workloads(file, root)}
        for file in older:
            problems += older_notices(file.path, {"workloads lie below workloads/ now, not below traces/": 1})
        groups = [*workloads, *older], [file for file in traces if file not in older]
        by_definition = [TracesByDefinition(TraceFiles(files, self._definitions), {}) for files in groups]
        return by_definition[0], by_definition[1]

    def _rooted(self, operation: str) -> Path:
        if self.root is None:
            raise NoRoot(operation)
        return self.root

    def _writable(self, relative: str) -> str:
        """The path to write to, whose folder must not lead out of the root through a link.

        A path is looked at once: an append must not cost a walk along it.
        """
        path = self._writable_paths.get(relative)
        if path is None:
            root = os.fspath(self._rooted("writing"))
            path = os.path.join(root, relative)
            if not _layout.is_below(os.path.realpath(path), os.path.realpath(root)):
                raise PermissionError(f"{path} leads out of the data set {root} through a link")
            self._writable_paths[relative] = path
        return path


def _by_name(kind: str, records: Iterable[Any], existing: LazyRecords[Any]) -> dict[str, Any]:
    new: dict[str, Any] = {}
    for record in records:
        if record.name in existing:
            raise DuplicateName(kind, record.name, existing.source(record.name), "the one to be added")
        if record.name in new:
            raise DuplicateName(kind, record.name, "one to be added", "another to be added")
        new[record.name] = record
    return new


def _lists(groups: Mapping[str, Iterable[Trace]] | None) -> dict[str, list[Trace]]:
    return {name: list(group) for name, group in (groups or {}).items()}


def _plain_lists(groups: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
    return {name: [to_plain(item) for item in group] for name, group in groups.items()}
