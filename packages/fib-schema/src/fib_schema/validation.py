"""Validation of a whole data set, with every problem in one report."""

from __future__ import annotations

import ast
import math
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from . import data_files
from ._legacy import LEGACY_CODE
from ._workload_checks import BlobChecks, WorkloadChecks, constraint_problems, size_problem
from .data_files import NO_DATA_SET, DataFile, describe_missing_data, list_files
from .definition import Definition
from .display import counted
from .errors import DataSetNotFound, InvalidField, UnknownName
from .files import get_fib_dataset_path
from .problems import MAX_PROBLEMS, Findings, Report
from .reader import Parsed, read_json, read_traces
from .solution import Solution
from .strides import stated_strides
from .syntax import parse_source
from .trace import Performance, Trace
from .trace_facts import has_workload_layout
from .traffic import load_traffic
from .workload import Workload

__all__ = ["MAX_PROBLEMS", "Report", "validate"]

_MAX_NAMES = 100
"""Limit of the names of one file for which a problem is listed."""
_OTHER_NAMES = "\0others"
_MEASURED_LAYOUT = "$.evaluation.extra.layout"


@attrs.frozen
class KnownSolution:
    """The fields of a solution that traces refer to."""

    name: str
    definition: str
    author: str


@attrs.define
class Known:
    """Records of a data set by name; None where the record is bad."""

    definitions: dict[str, Definition | None] = attrs.field(factory=dict)
    definition_files: dict[str, str] = attrs.field(factory=dict)
    solutions: dict[str, KnownSolution | None] = attrs.field(factory=dict)
    solution_files: dict[str, str] = attrs.field(factory=dict)
    workloads: dict[tuple[str, str], Workload] = attrs.field(factory=dict)
    """Workloads by definition and uuid."""
    workload_places: dict[tuple[str, str], str] = attrs.field(factory=dict)


class LineChecks:
    """Checks files of workloads and of traces, workloads first."""

    def __init__(self, known: Known, findings: Findings, blobs: BlobChecks) -> None:
        self._known = known
        self._findings = findings
        self._blobs = blobs
        self._of_traces: dict[tuple[str, str], Workload] = {}

    def check(self, file: DataFile) -> None:
        """Report everything that is wrong with a file and its records."""
        checks = _FileChecks(file, self._known, self._findings, self._blobs, self._of_traces)
        for number, trace in read_traces(file, self._findings):
            checks.check(trace, f"{file.name}:{number}")
        checks.finish()


@attrs.define
class _Recurring:
    """A problem that many lines of a file share."""

    place: str
    """The first line."""
    describe: Callable[[], str]
    code: str
    path: str
    is_error: bool
    count: int = 0


@attrs.define
class _FileChecks:
    """Checks of the records of one file; a problem that many lines share is reported once."""

    file: DataFile
    known: Known
    findings: Findings
    blobs: BlobChecks
    of_traces: dict[tuple[str, str], Workload]
    """Workloads of traces that are in no workload file."""
    _recurring: dict[tuple[str, str], _Recurring] = attrs.field(factory=dict)
    """Recurring problems by kind and name."""
    _names: Counter[str] = attrs.field(factory=Counter)

    def check(self, trace: Trace, place: str) -> None:
        """Report what is wrong with one record."""
        if trace.definition != self.file.stem:
            self._check_stem(trace.definition, place)
        if trace.definition not in self.known.definitions:
            unknown = UnknownName("definition", trace.definition, tuple(self.known.definitions))
            self._add_recurring(place, unknown.__str__, "unknown-definition", "$.definition", trace.definition)
        if trace.evaluation is None:
            self._check_workload_record(trace, place)
        else:
            self._check_trace(trace, place)

    def finish(self) -> None:
        """Report the problems that many lines share."""
        for problem in self._recurring.values():
            more = f" (and on {counted(problem.count - 1, 'more line')})" if problem.count > 1 else ""
            report = self.findings.error if problem.is_error else self.findings.warning
            report(problem.place, problem.describe() + more, problem.code, problem.path)

    def _check_stem(self, name: str, place: str) -> None:
        stem = self.file.stem
        if stem in self.known.definitions:
            message = f"is of {name!r}, and its file is named for {stem!r}; move it to a file of its own"
            self._add_recurring(place, message.__str__, "path-contradicts", "$.definition", name)
        elif name in self.known.definitions:
            message = f"the file is named for no definition, so every reader reads it: call it {name}.jsonl"
            self._add_recurring(place, message.__str__, "unusual-path", name=name, is_error=False)

    def _check_workload_record(self, trace: Trace, place: str) -> None:
        self.findings.counts["workloads"] += 1
        if not self.file.name.startswith((f"{data_files.WORKLOADS}/", data_files.LEGACY_WORKLOADS)):
            message = "is a workload (it has no evaluation); move it below workloads/"
            self._add_recurring(place, message.__str__, "path-contradicts", name="workload")
        elif not self.file.name.startswith(f"{data_files.WORKLOADS}/"):
            message = "workloads below traces/ have a legacy layout; rewrite the set with 'fib-bench migrate'"
            self._add_recurring(place, message.__str__, LEGACY_CODE, is_error=False)
        key = trace.definition, trace.workload.uuid
        if key in self.known.workloads:
            message = f"the uuid {key[1]!r} is that of {self.known.workload_places[key]} too; give one of them another"
            self.findings.error(place, message, "duplicate-workload", "$.workload.uuid")
            return
        self.known.workloads[key] = trace.workload
        self.known.workload_places[key] = place
        self._check_workload(trace, place)

    def _check_trace(self, trace: Trace, place: str) -> None:
        self.findings.counts["traces"] += 1
        if self.file.name.startswith(f"{data_files.WORKLOADS}/"):
            message = "is a trace (it has an evaluation); move it below traces/"
            self._add_recurring(place, message.__str__, "path-contradicts", name="trace")
        name = str(trace.solution)
        if name not in self.known.solutions:
            unknown = UnknownName("solution", name, tuple(self.known.solutions))
            self._add_recurring(place, unknown.__str__, "unknown-solution", "$.solution", name)
        elif (solution := self.known.solutions[name]) and solution.definition != trace.definition:
            message = f"solution {name!r} is for {solution.definition!r}, not for {trace.definition!r}"
            self.findings.error(place, message, "solution-contradicts", "$.solution")
        if trace.evaluation and trace.evaluation.performance:
            self._check_performance(trace.evaluation.performance, place)
        self._check_workload_of(trace, place)
        self._check_measured_layout(trace, place)
        self._check_folders(trace, place)

    def _check_workload_of(self, trace: Trace, place: str) -> None:
        """Compare a trace's workload with the workload of that uuid, or check it if there is none."""
        key = trace.definition, trace.workload.uuid
        known = self.known.workloads.get(key)
        if known is None:
            message = "no workload file has a workload of this uuid"
            self._add_recurring(place, message.__str__, "unknown-workload", "$.workload.uuid", is_error=False)
            if self.of_traces.get(key) == trace.workload:
                return
            self.of_traces[key] = trace.workload
            self._check_workload(trace, place)
        elif known != trace.workload:
            first = self.known.workload_places[key]
            message = f"has the uuid of {first} and differs from it; give it another uuid"
            self._add_recurring(place, message.__str__, "other-workload", "$.workload", first, is_error=False)
            self._check_workload(trace, place)

    def _check_measured_layout(self, trace: Trace, place: str) -> None:
        """Check the layout that an evaluation states, and that it is that of the workload."""
        workload = self.known.workloads.get((trace.definition, trace.workload.uuid), trace.workload)
        assert trace.evaluation is not None
        try:
            stated_strides(trace.evaluation.extra)
        except InvalidField as error:
            self.findings.error(place, f"{error}; correct it, or remove the trace", "layout", _MEASURED_LAYOUT)
            return
        if not has_workload_layout(self.known.definitions.get(trace.definition), workload, trace.evaluation):
            message = "measured another layout than that of its workload, and does not count for it; measure it again"
            self._add_recurring(place, message.__str__, "other-layout", _MEASURED_LAYOUT, is_error=False)

    def _check_workload(self, trace: Trace, place: str) -> None:
        if definition := self.known.definitions.get(trace.definition):
            WorkloadChecks(definition, trace.workload, place, self.findings, self.blobs).run()

    def _check_performance(self, performance: Performance, place: str) -> None:
        for field in ("latency_ms", "reference_latency_ms", "speedup_factor"):
            value = getattr(performance, field)
            if not 0 < value < math.inf:
                message = f"is {value}, which no measurement gives; the trace counts in no ranking: remove or repeat it"
                self.findings.warning(place, message, "performance", f"$.evaluation.performance.{field}")

    def _check_folders(self, trace: Trace, place: str) -> None:
        """Compare ``traces/<author>/<op_type>/`` with the record."""
        parts = self.file.parts
        if len(parts) != 4 or parts[0] != data_files.TRACES:
            return
        solution = self.known.solutions.get(str(trace.solution))
        definition = self.known.definitions.get(trace.definition)
        for word, found, wanted in (
            ("solution's author", parts[1], solution and solution.author),
            ("definition's op_type", parts[2], definition and definition.op_type),
        ):
            if wanted is not None and found != wanted:
                message = f"its path says {found!r}, and the {word} is {wanted!r}; move it"
                self._add_recurring(place, message.__str__, "path-contradicts", name=f"{word} {wanted}")

    def _add_recurring(
        self,
        place: str,
        describe: Callable[[], str],
        code: str,
        path: str = "$",
        name: str = "",
        *,
        is_error: bool = True,
    ) -> None:
        """Count a problem; it is described once, because finding close matches of a name takes milliseconds.

        For the same reason only the first of many unknown names of a file are listed.
        """
        if (code, name) not in self._recurring:
            self._names[code] += 1
            if self._names[code] > _MAX_NAMES:
                name = _OTHER_NAMES
                describe = f"has the problem of the {_MAX_NAMES} names above with another name".__str__
        problem = self._recurring.setdefault((code, name), _Recurring(place, describe, code, path, is_error))
        problem.count += 1


def validate(path: str | os.PathLike[str] | None = None) -> Report:
    """Check every file of a data set.

    Bad data is reported, never raised, and so is a folder that has no record. Files are read one at a time, and of
    tensors only the headers, so that large sets need little memory.

    Args:
        path: The data set's root; None means ``FIB_DATASET_PATH`` or the default below the home folder.

    Raises:
        DataSetNotFound: There is no such directory (a FileNotFoundError).
    """
    root = os.fspath(get_fib_dataset_path() if path is None else Path(path))
    if not os.path.isdir(root):
        raise DataSetNotFound(root)
    findings = Findings()
    known = Known()
    for file in list_files(root, data_files.DEFINITIONS, ".json", findings):
        _check_definition_file(file, known, findings)
    for file in list_files(root, data_files.SOLUTIONS, ".json", findings):
        _check_solution_file(file, known, findings)
    lines = LineChecks(known, findings, BlobChecks(root, findings))
    for file in list_files(root, data_files.WORKLOADS, ".jsonl", findings):
        lines.check(file)
    for file in _legacy_workloads_first(list_files(root, data_files.TRACES, ".jsonl", findings)):
        lines.check(file)
    findings.add(*(attrs.evolve(problem, code="traffic") for problem in load_traffic(root).problems))
    if not findings.errors and not findings.counts:
        findings.error(root, describe_missing_data(root), NO_DATA_SET)
    return findings.report(root)


def _legacy_workloads_first(files: list[DataFile]) -> list[DataFile]:
    """Files of legacy workloads, which lie among the traces, come first because traces refer to them."""
    return sorted(files, key=lambda file: not file.name.startswith(data_files.LEGACY_WORKLOADS))


def _check_definition_file(file: DataFile, known: Known, findings: Findings) -> None:
    parsed = read_json(file, Definition, findings)
    definition, name = parsed.record, _name(parsed, file)
    if name in known.definition_files:
        _duplicate("definition", name, known.definition_files[name], file, findings)
        return
    known.definition_files[name] = file.name
    known.definitions[name] = definition
    if definition is not None:
        findings.counts["definitions"] += 1
        wanted = data_files.DEFINITIONS, definition.op_type, definition.name
        _check_path(file, ("", "op_type", "name"), wanted, findings)
        _check_definition(definition, file.name, findings)


def _check_solution_file(file: DataFile, known: Known, findings: Findings) -> None:
    parsed = read_json(file, Solution, findings)
    solution, name = parsed.record, _name(parsed, file)
    if name in known.solution_files:
        _duplicate("solution", name, known.solution_files[name], file, findings)
        return
    known.solution_files[name] = file.name
    known.solutions[name] = None
    if solution is None:
        return
    known.solutions[name] = KnownSolution(solution.name, solution.definition, solution.author)
    findings.counts["solutions"] += 1
    if solution.definition not in known.definitions:
        message = str(UnknownName("definition", solution.definition, tuple(known.definitions)))
        findings.error(file.name, message, "unknown-definition", "$.definition")
    definition = known.definitions.get(solution.definition)
    op_type = definition.op_type if definition else None
    wanted = data_files.SOLUTIONS, solution.author, op_type, solution.definition, solution.name
    _check_path(file, ("", "author", "definition's op_type", "definition", "name"), wanted, findings)


def _name(parsed: Parsed[Any], file: DataFile) -> str:
    """The name that a file states, even if its record is bad; else that of the file."""
    if parsed.record is not None:
        return str(parsed.record.name)
    name = parsed.plain.get("name") if isinstance(parsed.plain, dict) else None
    return name if isinstance(name, str) else file.stem


def _duplicate(kind: str, name: str, first: str, file: DataFile, findings: Findings) -> None:
    message = f"{first} holds a {kind} named {name!r} too; rename or remove one"
    findings.error(file.name, message, "duplicate-name", "$.name")


def _check_path(file: DataFile, words: tuple[str, ...], wanted: tuple[str | None, ...], findings: Findings) -> None:
    """Report where a path contradicts its record; None in `wanted` is unknown."""
    right = "/".join("*" if value is None else value for value in wanted) + ".json"
    if len(file.parts) != len(wanted):
        findings.warning(file.name, f"lies at another depth than usual; move it to {right}", "unusual-path")
    levels = len(wanted) if len(file.parts) == len(wanted) else 1
    for part, word, value in zip(file.parts[-levels:], words[-levels:], wanted[-levels:], strict=True):
        if value is not None and part != value:
            message = f"its path says {part!r}, and its {word} is {value!r}; move it to {right} or correct the record"
            findings.error(file.name, message, "path-contradicts")


def _check_definition(definition: Definition, place: str, findings: Findings) -> None:
    for index, problem in constraint_problems(definition):
        findings.error(place, problem, "constraint", f"$.constraints[{index}]")
    for field, specs in (("inputs", definition.inputs), ("outputs", definition.outputs)):
        for name, spec in specs.items():
            if too_large := size_problem(spec, definition.const_axes):
                findings.error(place, too_large, "size", f"$.{field}.{name}")
    run, inputs = _arguments_of_run(definition.reference), list(definition.inputs)
    parameters = [argument.arg for argument in (*run.posonlyargs, *run.args)]
    text = f"run takes ({', '.join(parameters)}), the inputs are ({', '.join(inputs)})"
    if not _takes(run, len(inputs)):
        findings.error(place, f"{text}: it cannot be called with them", "reference-parameters", "$.reference")
    elif run.vararg is None and parameters[: len(inputs)] != inputs:
        message = f"{text}; arguments are passed in the order of the inputs"
        findings.warning(place, message, "reference-parameters", "$.reference")


def _arguments_of_run(reference: str) -> ast.arguments:
    """The parameters of a reference's ``run``."""
    nodes = parse_source(reference).body
    return [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "run"][-1].args


def _takes(run: ast.arguments, count: int) -> bool:
    """Whether a function can be called with `count` positional arguments."""
    positional = len(run.posonlyargs) + len(run.args)
    is_named_required = any(default is None for default in run.kw_defaults)
    is_enough = positional - len(run.defaults) <= count
    return is_enough and not is_named_required and (run.vararg is not None or count <= positional)
