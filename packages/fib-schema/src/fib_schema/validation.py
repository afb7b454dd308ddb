"""Validation of a whole data set, with every problem in one report."""

from __future__ import annotations

import ast
import math
import os
from pathlib import Path
from typing import Any

import attrs

from . import data_files
from ._legacy import LEGACY_CODE
from ._workload_checks import BlobChecks, WorkloadChecks, constraint_problems, size_problem
from .data_files import DataFile, list_files, missing_data
from .definition import Definition
from .display import counted
from .errors import DataSetNotFound, InvalidField, UnknownName
from .files import get_fib_dataset_path
from .problems import MAX_PROBLEMS, Findings, Report
from .reader import Parsed, read_json, read_traces
from .solution import Solution
from .strides import stated_strides
from .syntax import parse_source
from .trace import Evaluation, Performance, Trace
from .trace_facts import has_workload_layout
from .traffic import load_traffic
from .workload import Workload

__all__ = ["MAX_PROBLEMS", "Report", "validate"]

_MAX_NAMES = 100
"""Limit of the names of one file for which a problem is listed."""
_MEASURED_LAYOUT = "$.evaluation.extra.layout"


@attrs.define
class _Known:
    """Records of a data set by name; None where the record is bad."""

    definitions: dict[str, Definition | None] = attrs.field(factory=dict)
    definition_files: dict[str, str] = attrs.field(factory=dict)
    solutions: dict[str, tuple[str, str] | None] = attrs.field(factory=dict)
    """Definition and author."""
    solution_files: dict[str, str] = attrs.field(factory=dict)
    workloads: dict[tuple[str, str], Workload] = attrs.field(factory=dict)
    """Workloads by definition and uuid."""
    workload_places: dict[tuple[str, str], str] = attrs.field(factory=dict)
    of_traces: dict[tuple[str, str], Workload] = attrs.field(factory=dict)
    """Workloads of traces that are in no workload file."""


@attrs.define
class _Recurring:
    """A problem that many lines of a file share."""

    place: str
    """The first line."""
    problem: object
    """Its message; finding close matches of a name takes milliseconds, so it is made once, at the end."""
    path: str
    is_error: bool
    count: int = 0


@attrs.define
class _FileChecks:
    """Checks of the records of one file; a problem that many lines share is reported once."""

    file: DataFile
    known: _Known
    findings: Findings
    blobs: BlobChecks
    _recurring: dict[tuple[str, str], _Recurring] = attrs.field(factory=dict)
    """Recurring problems by code and name."""

    def run(self) -> None:
        """Report everything that is wrong with the file and its records."""
        for number, trace in read_traces(self.file, self.findings):
            self._check(trace, f"{self.file.name}:{number}")
        for (code, _), found in self._recurring.items():
            more = f" (and on {counted(found.count - 1, 'more line')})" if found.count > 1 else ""
            report = self.findings.error if found.is_error else self.findings.warning
            report(found.place, f"{found.problem}{more}", code, found.path)

    def _check(self, trace: Trace, place: str) -> None:
        if trace.definition != self.file.stem:
            self._check_stem(trace.definition, place)
        if trace.definition not in self.known.definitions:
            unknown = UnknownName("definition", trace.definition, tuple(self.known.definitions))
            self._add_recurring(place, unknown, "unknown-definition", "$.definition", trace.definition)
        if trace.evaluation is None:
            self._check_workload_record(trace, place)
        else:
            self._check_trace(trace, trace.evaluation, place)

    def _check_stem(self, name: str, place: str) -> None:
        stem = self.file.stem
        if stem in self.known.definitions:
            message = f"is of {name!r}, and its file is named for {stem!r}; move it to a file of its own"
            self._add_recurring(place, message, "path-contradicts", "$.definition", name)
        elif name in self.known.definitions:
            message = f"the file is named for no definition, so every reader reads it: call it {name}.jsonl"
            self._add_recurring(place, message, "unusual-path", name=name, is_error=False)

    def _check_workload_record(self, trace: Trace, place: str) -> None:
        self.findings.counts["workloads"] += 1
        if not self.file.name.startswith((f"{data_files.WORKLOADS}/", data_files.LEGACY_WORKLOADS)):
            message = "is a workload (it has no evaluation); move it below workloads/"
            self._add_recurring(place, message, "path-contradicts", name="workload")
        elif not self.file.name.startswith(f"{data_files.WORKLOADS}/"):
            message = "workloads below traces/ have a legacy layout; rewrite the set with 'fib-bench migrate'"
            self._add_recurring(place, message, LEGACY_CODE, is_error=False)
        key = trace.definition, trace.workload.uuid
        if key in self.known.workloads:
            message = f"the uuid {key[1]!r} is that of {self.known.workload_places[key]} too; give one of them another"
            self.findings.error(place, message, "duplicate-workload", "$.workload.uuid")
            return
        self.known.workloads[key] = trace.workload
        self.known.workload_places[key] = place
        self._check_workload(trace, place)

    def _check_trace(self, trace: Trace, evaluation: Evaluation, place: str) -> None:
        self.findings.counts["traces"] += 1
        if self.file.name.startswith(f"{data_files.WORKLOADS}/"):
            message = "is a trace (it has an evaluation); move it below traces/"
            self._add_recurring(place, message, "path-contradicts", name="trace")
        name = str(trace.solution)
        if name not in self.known.solutions:
            unknown = UnknownName("solution", name, tuple(self.known.solutions))
            self._add_recurring(place, unknown, "unknown-solution", "$.solution", name)
        elif (solution := self.known.solutions[name]) and solution[0] != trace.definition:
            message = f"solution {name!r} is for {solution[0]!r}, not for {trace.definition!r}"
            self.findings.error(place, message, "solution-contradicts", "$.solution")
        if evaluation.performance:
            self._check_performance(evaluation.performance, place)
        self._check_workload_of(trace, place)
        self._check_measured_layout(trace, evaluation, place)
        self._check_folders(trace, place)

    def _check_workload_of(self, trace: Trace, place: str) -> None:
        """Compare a trace's workload with the workload of that uuid, or check it if there is none."""
        key = trace.definition, trace.workload.uuid
        known = self.known.workloads.get(key)
        if known is None:
            message = "no workload file has a workload of this uuid"
            self._add_recurring(place, message, "unknown-workload", "$.workload.uuid", is_error=False)
            if self.known.of_traces.get(key) == trace.workload:
                return
            self.known.of_traces[key] = trace.workload
            self._check_workload(trace, place)
        elif known != trace.workload:
            first = self.known.workload_places[key]
            message = f"has the uuid of {first} and differs from it; give it another uuid"
            self._add_recurring(place, message, "other-workload", "$.workload", first, is_error=False)
            self._check_workload(trace, place)

    def _check_measured_layout(self, trace: Trace, evaluation: Evaluation, place: str) -> None:
        """Check the layout that an evaluation states, and that it is that of the workload."""
        workload = self.known.workloads.get((trace.definition, trace.workload.uuid), trace.workload)
        try:
            stated_strides(evaluation.extra)
        except InvalidField as error:
            self.findings.error(place, f"{error}; correct it, or remove the trace", "layout", _MEASURED_LAYOUT)
            return
        if not has_workload_layout(self.known.definitions.get(trace.definition), workload, evaluation):
            message = "measured another layout than that of its workload, and does not count for it; measure it again"
            self._add_recurring(place, message, "other-layout", _MEASURED_LAYOUT, is_error=False)

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
            ("solution's author", parts[1], solution and solution[1]),
            ("definition's op_type", parts[2], definition and definition.op_type),
        ):
            if wanted is not None and found != wanted:
                message = f"its path says {found!r}, and the {word} is {wanted!r}; move it"
                self._add_recurring(place, message, "path-contradicts", name=f"{word} {wanted}")

    def _add_recurring(
        self, place: str, problem: object, code: str, path: str = "$", name: str = "", *, is_error: bool = True
    ) -> None:
        """Count a problem; of many names of a file only the first are listed."""
        if (code, name) not in self._recurring and sum(
            1 for known, _ in self._recurring if known == code
        ) >= _MAX_NAMES:
            name, problem = "", f"has the problem of the {_MAX_NAMES} names above with another name"
        found = self._recurring.setdefault((code, name), _Recurring(place, problem, path, is_error))
        found.count += 1


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
    known = _Known()
    for file in list_files(root, data_files.DEFINITIONS, ".json", findings):
        _check_definition_file(file, known, findings)
    for file in list_files(root, data_files.SOLUTIONS, ".json", findings):
        _check_solution_file(file, known, findings)
    blobs = BlobChecks(root, findings)
    files = list_files(root, data_files.WORKLOADS, ".jsonl", findings)
    traces = list_files(root, data_files.TRACES, ".jsonl", findings)
    for file in (*files, *sorted(traces, key=_has_traces)):
        _FileChecks(file, known, findings, blobs).run()
    findings.add(*(attrs.evolve(problem, code="traffic") for problem in load_traffic(root).problems))
    if not findings.errors and not findings.counts:
        findings.add(missing_data(root))
    return findings.report(root)


def _has_traces(file: DataFile) -> bool:
    """Whether a file below the traces holds traces; legacy workloads lie there too, and traces refer to them."""
    return not file.name.startswith(data_files.LEGACY_WORKLOADS)


def _check_definition_file(file: DataFile, known: _Known, findings: Findings) -> None:
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


def _check_solution_file(file: DataFile, known: _Known, findings: Findings) -> None:
    parsed = read_json(file, Solution, findings)
    solution, name = parsed.record, _name(parsed, file)
    if name in known.solution_files:
        _duplicate("solution", name, known.solution_files[name], file, findings)
        return
    known.solution_files[name] = file.name
    known.solutions[name] = None
    if solution is None:
        return
    known.solutions[name] = solution.definition, solution.author
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
