"""TraceSet: a data set of definitions, solutions, workloads and traces, on disk or in memory."""

from __future__ import annotations

import math
import os
import shutil
import warnings
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import attrs

from . import data_files
from ._record import Record, component_problem
from .codec import format_json, paused_gc, to_plain
from .data_files import DataFile, NamedFile, named_files, read_json, read_traces
from .definition import Definition
from .display import counted
from .errors import (
    DataSetNotFound,
    DataWarning,
    DuplicateName,
    InvalidField,
    InvalidRecord,
    NoRoot,
    Problem,
    UnknownName,
)
from .files import append_new_lines, atomic_create_all, get_fib_dataset_path, staged
from .problems import Findings
from .solution import Solution
from .trace import Trace
from .trace_facts import has_workload_layout, kind_of, speedup_of
from .workload_log import WorkloadLog

if TYPE_CHECKING:
    import torch


@attrs.frozen
class SpeedupMetrics:
    """A score."""

    avg_speedup: float
    """Mean of baseline latency / latency; 0 if anything failed."""
    workload_count: int
    """The number of workloads in the mean."""
    definitions: int = 1
    """The number of definitions in the mean."""


@attrs.frozen
class TraceSetSummary:
    """Counts of traces, and the authors by score, where the baseline author has exactly one solution."""

    total: int
    passed: int
    failed: int
    rankings: tuple[tuple[str, SpeedupMetrics], ...]
    """Authors and their scores, the best first."""


# -- mappings that parse files on first use ------------------------------------------------------------

R = TypeVar("R", bound=Record)


class _LazyRecords(Mapping[str, R], Generic[R]):
    """One record per file, by name, parsed when it is asked for.

    Iteration, ``len``, ``in`` and ``get`` leave out a file without a valid record, and its problems are
    reported. Only ``[name]`` raises an `InvalidRecord` that says what is wrong with it.
    """

    def __init__(self, cls: type[R], files: Mapping[str, DataFile], problems: list[Problem]) -> None:
        self._cls = cls
        self._problems = problems
        self._files = files
        self._read: dict[str, R | InvalidRecord] = {}
        self.names = dict.fromkeys(files)
        """The names of all files and records; nothing is parsed for that."""

    def __getitem__(self, name: str) -> R:
        if name not in self.names:
            raise UnknownName(self._cls.__name__.lower(), str(name), tuple(self.names))
        found = self._found(name)
        if isinstance(found, InvalidRecord):
            raise found
        return found

    def _found(self, name: str) -> R | InvalidRecord:
        """The record of a name, or what is wrong with it, which is reported when the file is read first."""
        if name not in self._read:
            findings = Findings()
            record = read_json(self._files[name], self._cls, findings)
            self._read[name] = record or InvalidRecord(self._cls.__name__, tuple(findings.errors))
            self._problems += findings.problems
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in list(self.names) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or name not in self.names:
            return False
        is_known = name in self._read
        found = self._found(name)
        if isinstance(found, InvalidRecord) and not is_known:
            warnings.warn(f"skipped {found.problems[0]}", DataWarning, stacklevel=3)
        return not isinstance(found, InvalidRecord)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 this is `get`

    def source(self, name: str) -> str:
        """The file that a record comes from."""
        file = self._files.get(name)
        return file.name if file else "<memory>"

    def add(self, records: Mapping[str, R]) -> None:
        """Add records in memory."""
        self._read |= records
        self.names |= dict.fromkeys(records)


class _SolutionsByDefinition(Mapping[str, list[Solution]]):
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


class _TracesByDefinition(Mapping[str, list[Trace]]):
    """The traces of each definition, read from its JSON Lines files when they are asked for, and then those added.

    A file whose stem names a definition holds the traces of that definition. A file whose stem names
    none is read first. A record that contradicts its file is kept under its own definition.
    """

    def __init__(self, kind: str, files: Iterable[DataFile] = (), definitions: Container[str] = ()) -> None:
        self.problems: list[Problem] = []
        self._kind = kind
        self._of_definition: dict[str, list[DataFile]] = {}
        self._anonymous: list[DataFile] = []
        self._read_traces: dict[str, list[Trace]] = {}
        self._added: dict[str, list[Trace]] = {}
        for file in files:
            if file.stem in definitions:
                self._of_definition.setdefault(file.stem, []).append(file)
                self._read_traces[file.stem] = []
            else:
                self._anonymous.append(file)

    def __getitem__(self, definition: str) -> list[Trace]:
        if definition not in self:
            raise UnknownName(f"definition with {self._kind}", str(definition), tuple(self))
        for file in self._of_definition.pop(definition, ()):
            self._read(file)
        return self._read_traces.get(definition, []) + self._added.get(definition, [])

    def __iter__(self) -> Iterator[str]:
        self._read_anonymous()
        return iter(list(dict.fromkeys([*self._read_traces, *self._added])))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, definition: object) -> bool:
        self._read_anonymous()
        return definition in self._added or definition in self._read_traces

    def add(self, groups: Mapping[str, Iterable[Trace]]) -> None:
        """Add traces in memory, by the name of their definition."""
        for definition, traces in groups.items():
            self._added.setdefault(definition, []).extend(traces)

    def _read_anonymous(self) -> None:
        while self._anonymous:
            self._read(self._anonymous.pop(0))

    def _read(self, file: DataFile) -> None:
        findings = Findings()
        with paused_gc():
            for _, trace in read_traces(file, findings):
                self._read_traces.setdefault(trace.definition, []).append(trace)
        self.problems += findings.problems
        if errors := findings.errors:
            shown = f"{counted(len(errors), 'problem')} in {file.path}; bad lines were skipped: {errors[0]}"
            warnings.warn(shown, DataWarning, stacklevel=6)


# -- the store ---------------------------------------------------------------------------------------


def _folder(name: str, content: str) -> Any:
    """The property that is a folder of a set with a root."""
    return property(lambda self: self._require_root(f"the folder {name}") / name, doc=f"The folder of the {content}.")


class TraceSet:
    """A data set of definitions, solutions, workloads and traces.

    With a root it is a view of a directory: opening lists files and reads names; records are parsed
    when they are first used. Without a root it lives in memory. The values of `definitions`,
    `solutions`, `workloads` and `traces` show what is added later.

    Queries leave out evaluations of another layout than that of their workload, see `counting_traces`.

    Records of a set in memory are given by the names of their definitions.

    Raises:
        DuplicateName: Two solutions share a name.
    """

    root: Path | None

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        definitions: Mapping[str, Definition] | None = None,
        solutions: Mapping[str, Iterable[Solution]] | None = None,
        workloads: Mapping[str, Iterable[Trace]] | None = None,
        traces: Mapping[str, Iterable[Trace]] | None = None,
    ) -> None:
        self.root = None if root is None else Path(root)
        self._writable_paths: dict[str, str] = {}
        self._found_problems: list[Problem] = []
        self._definitions = _LazyRecords(Definition, {}, self._found_problems)
        self._definitions.add(definitions or {})
        self._solutions = _LazyRecords(Solution, {}, self._found_problems)
        self._solution_names: dict[str, tuple[str, ...]] = {}
        self._owners: dict[str, tuple[str, str]] = {}
        """The definition and the author of each solution."""
        for group in (solutions or {}).values():
            self._index_solutions(group)
        self._workloads, self._traces = _TracesByDefinition("workloads"), _TracesByDefinition("traces")
        self._workloads.add(workloads or {})
        self._traces.add(traces or {})

    @classmethod
    def from_path(cls, path: str | os.PathLike[str] | None = None) -> Self:
        """Open the data set at a path; None means ``FIB_DATASET_PATH`` or the default below the home folder.

        Raises:
            DataSetNotFound: There is no such directory (a FileNotFoundError). Nothing is created.
        """
        root = get_fib_dataset_path() if path is None else Path(path)
        if not os.path.isdir(root):
            raise DataSetNotFound(str(root))
        self = cls(root)
        self._open_files(os.fspath(root))
        return self

    def __repr__(self) -> str:
        definitions, solutions = len(self._definitions.names), len(self._solutions.names)
        counts = f"{counted(definitions, 'definition')}, {counted(solutions, 'solution')}"
        return f"TraceSet(root={str(self.root)!r}, {counts})"

    @property
    def definitions(self) -> Mapping[str, Definition]:
        """The definitions by name."""
        return self._definitions

    @property
    def solutions(self) -> Mapping[str, list[Solution]]:
        """The solutions by the name of their definition."""
        return _SolutionsByDefinition(self._solutions, self._solution_names)

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
        return tuple(self._found_problems + self._workloads.problems + self._traces.problems)

    def all_problems(self) -> tuple[Problem, ...]:
        """The problems of all files; reads those that have not been read."""
        for records in (self._definitions, self._solutions):
            for _ in records:
                pass
        for traces in (self._workloads, self._traces):
            for name in traces:
                traces[name]
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
        from .blobs import BlobError, format_tensors

        self._require_root("add_workload_blob_tensor")
        definition = self.get_definition(def_name)
        if problem := component_problem(workload_uuid):
            raise BlobError(workload_uuid, f"cannot be named after this workload, whose uuid {problem}")
        path = data_files.blob_file(definition, workload_uuid)
        try:
            atomic_create_all({self._writable(path): format_tensors(tensors)}, keeps_existing=False)
        except FileExistsError as error:
            raise BlobError(path, "exists already; blobs are never overwritten") from error
        return path

    def add_definitions(self, definitions: Iterable[Definition]) -> None:
        """Add definitions, and write each to its file if the set has a root.

        Raises:
            DuplicateName: A definition of that name, or its file, exists; nothing was added.
            OSError: They could not be written; nothing was added.
        """
        new = _by_name("definition", definitions, self._definitions)
        self._write_new("definition", {data_files.definition_file(item): item for item in new.values()})
        self._definitions.add(new)

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

        The traces of a file are all added or, after an error, none of them, neither in memory nor on disk.

        Raises:
            UnknownName: A trace names an unknown definition or solution; nothing was added.
            OSError: A file could not be written; the traces of the files before it were added.
        """
        groups: dict[str, list[Trace]] = {}
        for trace in traces:
            path = _file_of(trace, self.get_definition(trace.definition), self._owners)
            groups.setdefault(path if self.root is None else self._writable(path), []).append(trace)
        lines = {path: [format_json(trace).encode() for trace in group] for path, group in groups.items()}
        for path, group in groups.items():
            if self.root is not None:
                append_new_lines(path, lambda _, path=path: lines[path])  # type: ignore[misc]
            view = self._workloads if group[0].evaluation is None else self._traces
            view.add({group[0].definition: group})

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
        self._solutions.add(new)
        self._add_owners(new.values())

    def _add_owners(self, solutions: Iterable[Solution | NamedFile]) -> None:
        """Note the definitions and authors of solutions."""
        for one in solutions:
            self._owners[one.name] = one.definition, one.author
            self._solution_names[one.definition] = (*self._solution_names.get(one.definition, ()), one.name)

    def _open_files(self, root: str) -> None:
        """List the files of all folders and read the names of definitions and solutions."""
        folders = {data_files.DEFINITIONS: ".json", data_files.SOLUTIONS: ".json"}
        lines = {data_files.WORKLOADS: ".jsonl", data_files.TRACES: ".jsonl"}
        files, found = data_files.list_data_files(root, folders | lines)
        findings = Findings()
        definitions, solutions = (
            [group[0] for group in named_files(files[folder], kind, findings).values() if len(group) == 1]
            for folder, kind in ((data_files.DEFINITIONS, "definition"), (data_files.SOLUTIONS, "solution"))
        )
        self._found_problems += found + findings.problems
        problems, names = self._found_problems, {one.name: one.file for one in definitions}
        self._definitions = _LazyRecords(Definition, names, problems)
        self._solutions = _LazyRecords(Solution, {one.name: one.file for one in solutions}, problems)
        self._add_owners(solutions)
        self._workloads = _TracesByDefinition("workloads", files[data_files.WORKLOADS], names)
        self._traces = _TracesByDefinition("traces", files[data_files.TRACES], names)

    definitions_path = _folder(data_files.DEFINITIONS, "definitions")
    solutions_path = _folder(data_files.SOLUTIONS, "solutions")
    workloads_path = _folder(data_files.WORKLOADS, "workloads")
    traces_path = _folder(data_files.TRACES, "traces")
    blob_path = _folder("blob", "tensors")
    blob_workloads_path = _folder(data_files.BLOB_WORKLOADS, "workloads' tensors")

    def backup_traces(self) -> None:
        """Copy the traces to ``traces_backup_<time>`` beside their folder.

        Raises:
            NoRoot: The set is in memory only.
            OSError: The traces could not be copied, or there is such a backup already; there is no new one.
        """
        source: Path = self.traces_path
        stamp = datetime.now().astimezone().strftime("%Y%m%d_%H%M%S_%f")
        with staged(source.with_name(f"{source.name}_backup_{stamp}")) as copy:
            shutil.copytree(source, copy, symlinks=True)

    def get_workload_blob_tensor(self, path_str: str) -> dict[str, torch.Tensor]:
        """Read the tensors of a workload's file, given relative to the root, to the CPU.

        Raises:
            BlobError: There is no such file below the root, or it is bad.
        """
        from .blobs import load_tensors

        return load_tensors(self.root, path_str)

    def _require_root(self, operation: str) -> Path:
        if self.root is None:
            raise NoRoot(operation)
        return self.root

    def _writable(self, relative: str) -> str:
        """The path to write to; refused if a link on it leads out of the root.

        Each path is resolved once, because resolving costs as much as the rest of an append.
        """
        path = self._writable_paths.get(relative)
        if path is None:
            root = os.fspath(self._require_root("writing"))
            path = os.path.join(root, relative)
            if not data_files.is_below(os.path.realpath(path), os.path.realpath(root)):
                raise PermissionError(f"{path} leads out of the data set {root} through a link")
            self._writable_paths[relative] = path
        return path

    def counting_traces(self, def_name: str) -> list[Trace]:
        """The traces of a definition that measured the layout of their workload, in the order of the files.

        The workload of the data set with the uuid of a trace decides; the trace's own copy, where there is none.
        """
        stated = {one.workload.uuid: one.workload for one in reversed(self.workloads.get(def_name, []))}
        definition = self.definitions.get(def_name)
        return [
            one
            for one in self.traces.get(def_name, [])
            if not one.evaluation
            or has_workload_layout(definition, stated.get(one.workload.uuid, one.workload), one.evaluation)
        ]

    def filter_traces(self, def_name: str, atol: float = 1e-2, rtol: float = 1e-2) -> list[Trace]:
        """The passing traces of a definition whose absolute and relative errors are at most `atol` and `rtol`."""
        return [trace for trace in self.counting_traces(def_name) if _is_within(trace, atol, rtol)]

    def get_best_trace(
        self,
        def_name: str,
        axes: Mapping[str, int] | None = None,
        max_abs_error: float = 1e-2,
        max_rel_error: float = 1e-2,
    ) -> Trace | None:
        """The passing trace with the largest speedup and none of `UNRANKED_FLAGS`, or None if no trace qualifies.

        Only traces with at most these errors count, and with `axes`, only those of workloads with exactly these.
        """
        found = self.filter_traces(def_name, max_abs_error, max_rel_error)
        ranked = [trace for trace in found if trace.evaluation and trace.evaluation.is_ranked()]
        return max((one for one in ranked if axes is None or one.workload.axes == axes), key=_speedup, default=None)

    def get_solution_score(self, solution_name: str, baseline_author: str = "baseline") -> SpeedupMetrics | None:
        """The mean speedup of a solution over the baseline author's, on workloads that both passed.

        Of several traces on one workload the one with the lowest latency counts; those of different kinds
        are not compared (`Timing.kind`), and those with one of `UNRANKED_FLAGS` do not count. If any trace of the
        solution has failed, the score is 0. None if the solution is unknown, is the baseline, or has no workload to
        compare.

        Raises:
            InvalidField: The baseline author has no solution or several for the definition, or a
                passing trace has an invalid latency (a ValueError).
        """
        owner = self._owners.get(solution_name)
        return None if owner is None else self._scores(owner[0], baseline_author).get(solution_name)

    def get_author_score(
        self,
        author: str,
        baseline_author: str = "baseline",
        op_type: str | None = None,
        definition_name: str | None = None,
    ) -> SpeedupMetrics | None:
        """The mean, over definitions in scope, of the author's best solution's score; None if there is none.

        The definitions of an `op_type`, one by its name (not both, a ValueError), or all are in scope.

        Raises:
            UnknownName: There is no such definition (a KeyError).
            InvalidField: As `get_solution_score`.
        """
        scope = [name for name in self._in_scope(op_type, definition_name) if self._solutions_by(name, author)]
        return dict(self._ranking(scope, baseline_author)).get(author)

    def rank_authors(
        self, baseline_author: str = "baseline", op_type: str | None = None, definition_name: str | None = None
    ) -> list[tuple[str, SpeedupMetrics]]:
        """Every author with a score, see `get_author_score`, the best first; equal scores in the order of names.

        Definitions without any solution are not in scope.
        """
        scope = [name for name in self._in_scope(op_type, definition_name) if self.solution_names(name)]
        return self._ranking(scope, baseline_author)

    def summary(
        self, baseline_author: str = "baseline", op_type: str | None = None, definition_name: str | None = None
    ) -> TraceSetSummary:
        """Counts of traces in scope, see `get_author_score`, and the authors over definitions that have a baseline."""
        scope = self._in_scope(op_type, definition_name)
        passed = [trace.is_successful() for name in scope for trace in self.traces.get(name, [])]
        ranked = [name for name in scope if len(self._solutions_by(name, baseline_author)) == 1]
        return TraceSetSummary(
            total=len(passed),
            passed=sum(passed),
            failed=len(passed) - sum(passed),
            rankings=tuple(self._ranking(ranked, baseline_author)),
        )

    def _in_scope(self, op_type: str | None, definition_name: str | None) -> list[str]:
        if op_type is not None and definition_name is not None:
            raise ValueError("give op_type or definition_name, not both")
        if definition_name is not None:
            return [self.get_definition(definition_name).name]
        return [name for name, found in self.definitions.items() if op_type in (None, found.op_type)]

    def _ranking(self, scope: Iterable[str], baseline_author: str) -> list[tuple[str, SpeedupMetrics]]:
        """The mean of the best score of each author over definitions, the best first."""
        best: dict[str, dict[str, SpeedupMetrics]] = {}
        for definition in scope:
            for name, score in self._scores(definition, baseline_author).items():
                of_author = best.setdefault(self._owners.get(name, ("", ""))[1], {})
                if definition not in of_author or score.avg_speedup > of_author[definition].avg_speedup:
                    of_author[definition] = score
        means = [(author, _mean(scores.values())) for author, scores in best.items()]
        return sorted(means, key=lambda item: (-item[1].avg_speedup, item[0]))

    def _scores(self, definition: str, baseline_author: str) -> dict[str, SpeedupMetrics]:
        """The scores of the solutions of a definition that have one."""
        baseline = self._baseline(definition, baseline_author)
        latencies, failed = _latencies(self.counting_traces(definition))
        base = latencies.get(baseline, {})
        scores = {}
        for name in self.solution_names(definition):
            own = latencies.get(name, {})
            shared = own.keys() & base.keys()
            if name == baseline or not (shared or name in failed):
                continue
            ratios = [0.0] if name in failed else [
                _valid(base[key], definition, baseline) / _valid(own[key], definition, name) for key in shared
            ]  # fmt: skip
            scores[name] = SpeedupMetrics(sum(ratios) / len(ratios), len({uuid for uuid, _ in shared}))
        return scores

    def _baseline(self, definition: str, author: str) -> str:
        """The baseline author's only solution of a definition."""
        found = self._solutions_by(definition, author)
        if len(found) != 1:
            count = f"{len(found)} solutions ({', '.join(found)})" if found else "no solution"
            problem = f"the baseline author {author!r} has {count}, wanted exactly one"
            raise InvalidField(f"definition {definition!r}", problem)
        return found[0]

    def _solutions_by(self, definition: str, author: str) -> list[str]:
        return [name for name in self.solution_names(definition) if self._owners.get(name) == (definition, author)]


def _file_of(trace: Trace, definition: Definition, owners: Mapping[str, tuple[str, str]]) -> str:
    """The path of a trace's file below the root."""
    if trace.solution is None:
        return data_files.workloads_file(definition)
    if trace.solution not in owners:
        raise UnknownName("solution", trace.solution, tuple(owners))
    return data_files.traces_file(owners[trace.solution][1], definition)


def _by_name(kind: str, records: Iterable[Any], existing: _LazyRecords[Any]) -> dict[str, Any]:
    new: dict[str, Any] = {}
    for record in records:
        if record.name in existing.names or record.name in new:
            first = "one to be added" if record.name in new else existing.source(record.name)
            raise DuplicateName(kind, record.name, first, "the one to be added")
        new[record.name] = record
    return new


def _plain_lists(groups: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
    return {name: [to_plain(item) for item in group] for name, group in groups.items()}


def _speedup(trace: Trace) -> float:
    performance = trace.evaluation and trace.evaluation.performance
    return (performance and speedup_of(performance)) or -1.0


def _is_within(trace: Trace, absolute: float, relative: float) -> bool:
    """Whether a trace passed with errors of at most these."""
    errors = trace.evaluation.correctness if trace.evaluation and trace.is_successful() else None
    return errors is not None and errors.max_absolute_error <= absolute and errors.max_relative_error <= relative


_Latencies = dict[tuple[str, str], float]
"""Latencies by workload and kind."""


def _latencies(traces: Iterable[Trace]) -> tuple[dict[str, _Latencies], set[str]]:
    """The lowest latencies of passing traces by solution, and the solutions with a failed trace."""
    latencies: dict[str, _Latencies] = {}
    failed: set[str] = set()
    for trace in traces:
        if trace.evaluation is None or trace.solution is None or not trace.evaluation.is_ranked():
            continue
        if (performance := trace.evaluation.performance) is None:
            failed.add(trace.solution)
            continue
        key, of_solution = (trace.workload.uuid, kind_of(performance)), latencies.setdefault(trace.solution, {})
        if key not in of_solution or performance.latency_ms < of_solution[key]:
            of_solution[key] = performance.latency_ms
    return latencies, failed


def _mean(scores: Collection[SpeedupMetrics]) -> SpeedupMetrics:
    """The mean of scores of several definitions."""
    mean = math.fsum(score.avg_speedup for score in scores) / len(scores)
    return SpeedupMetrics(mean, sum(score.workload_count for score in scores), len(scores))


def _valid(latency: float, definition: str, solution: str) -> float:
    if not 0 < latency < math.inf:
        problem = f"a passing trace of {solution!r} has the latency {latency} ms, which is not a positive number"
        raise InvalidField(f"definition {definition!r}", problem)
    return latency
