"""Validation of a whole data set, with every problem in one report."""

from __future__ import annotations

import ast
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from . import data_files
from .blobs import BlobError, StoredTensor, stored_tensors
from .codec import child_path
from .constraints import constraint_names, evaluate_constraint
from .data_files import DataFile, list_files, missing_data, named_files, read_json, read_traces
from .definition import Definition, DType, TensorSpec
from .display import counted
from .errors import ConstraintError, DataSetNotFound, InvalidField, UnknownName
from .files import get_fib_dataset_path
from .problems import Findings, Report
from .solution import Solution
from .strides import stated_strides, storage_elements, workload_strides
from .syntax import parse_source, undefined_names
from .trace import Evaluation, Performance, SafetensorsInput, ScalarInput, Trace, Workload
from .trace_facts import has_workload_layout
from .traffic import load_traffic

_MAX_SUGGESTIONS = 100
"""Unknown names for which close matches are looked up, which takes milliseconds."""
_MEASURED_LAYOUT = "$.evaluation.extra.layout"


@attrs.define
class _Known:
    """Records of a data set by name; None where the record is bad."""

    definitions: dict[str, Definition | None] = attrs.field(factory=dict)
    solutions: dict[str, tuple[str, str] | None] = attrs.field(factory=dict)
    """Definition and author."""
    workloads: dict[tuple[str, str], tuple[Workload, str]] = attrs.field(factory=dict)
    """Workloads and their places, by definition and uuid."""
    of_traces: dict[tuple[str, str], Workload] = attrs.field(factory=dict)
    """Workloads of traces that are in no workload file."""
    _unknown: dict[tuple[str, str], str] = attrs.field(factory=dict)

    def unknown(self, kind: str, name: str, names: Iterable[str]) -> str:
        """The message about a name that no record has."""
        if (kind, name) not in self._unknown:
            if len(self._unknown) >= _MAX_SUGGESTIONS:
                return f"no {kind} is named {name!r}"
            self._unknown[kind, name] = str(UnknownName(kind, name, tuple(names)))
        return self._unknown[kind, name]


@attrs.frozen
class _FileChecks:
    """Checks of the records of one file."""

    file: DataFile
    known: _Known
    findings: Findings
    blobs: _BlobChecks

    def run(self) -> None:
        """Report everything that is wrong with the file and its records."""
        for number, trace in read_traces(self.file, self.findings):
            self._check(trace, f"{self.file.name}:{number}")

    def _check(self, trace: Trace, place: str) -> None:
        if trace.definition != self.file.stem:
            self._check_stem(trace.definition, place)
        if trace.definition not in self.known.definitions:
            message = self.known.unknown("definition", trace.definition, self.known.definitions)
            self.findings.error(place, message, "unknown-definition", "$.definition")
        if trace.evaluation is None:
            self._check_workload_record(trace, place)
        else:
            self._check_trace(trace, trace.evaluation, place)

    def _check_stem(self, name: str, place: str) -> None:
        stem = self.file.stem
        if stem in self.known.definitions:
            message = f"is of {name!r}, and its file is named for {stem!r}; move it to a file of its own"
            self.findings.error(place, message, "path-contradicts", "$.definition")
        elif name in self.known.definitions:
            message = f"the file is named for no definition, so every reader reads it: call it {name}.jsonl"
            self.findings.warning(place, message, "unusual-path")

    def _check_workload_record(self, trace: Trace, place: str) -> None:
        self.findings.counts["workloads"] += 1
        if not self.file.name.startswith(f"{data_files.WORKLOADS}/"):
            message = "is a workload (it has no evaluation); move it below workloads/"
            self.findings.error(place, message, "path-contradicts")
        key = trace.definition, trace.workload.uuid
        if key in self.known.workloads:
            message = f"the uuid {key[1]!r} is that of {self.known.workloads[key][1]} too; give one of them another"
            self.findings.error(place, message, "duplicate-workload", "$.workload.uuid")
            return
        self.known.workloads[key] = trace.workload, place
        self._check_workload(trace, place)

    def _check_trace(self, trace: Trace, evaluation: Evaluation, place: str) -> None:
        self.findings.counts["traces"] += 1
        if self.file.name.startswith(f"{data_files.WORKLOADS}/"):
            message = "is a trace (it has an evaluation); move it below traces/"
            self.findings.error(place, message, "path-contradicts")
        name = str(trace.solution)
        if name not in self.known.solutions:
            message = self.known.unknown("solution", name, self.known.solutions)
            self.findings.error(place, message, "unknown-solution", "$.solution")
        elif (solution := self.known.solutions[name]) and solution[0] != trace.definition:
            message = f"solution {name!r} is for {solution[0]!r}, not for {trace.definition!r}"
            self.findings.error(place, message, "solution-contradicts", "$.solution")
        if evaluation.performance:
            self._check_performance(evaluation.performance, place)
        self._check_workload_of(trace, evaluation, place)
        self._check_measured_layout(trace, evaluation, place)
        self._check_folders(trace, place)

    def _check_workload_of(self, trace: Trace, evaluation: Evaluation, place: str) -> None:
        """Compare a trace's workload with the workload of that uuid, or check it if there is none."""
        key = trace.definition, trace.workload.uuid
        known, first = self.known.workloads.get(key, (None, ""))
        if known is None:
            message = "no workload file has a workload of this uuid"
            self.findings.warning(place, message, "unknown-workload", "$.workload.uuid")
            if self.known.of_traces.get(key) == trace.workload:
                return
            self.known.of_traces[key] = trace.workload
            self._check_workload(trace, place)
        elif known != trace.workload and "enlarged_axes" not in (evaluation.extra or ()):
            message = f"has the uuid of {first} and differs from it; give it another uuid"
            self.findings.warning(place, message, "other-workload", "$.workload")
            self._check_workload(trace, place)

    def _check_measured_layout(self, trace: Trace, evaluation: Evaluation, place: str) -> None:
        """Check the layout that an evaluation states, and that it is that of the workload."""
        workload, _ = self.known.workloads.get((trace.definition, trace.workload.uuid), (trace.workload, ""))
        try:
            stated_strides(evaluation.extra)
        except InvalidField as error:
            self.findings.error(place, f"{error}; correct it, or remove the trace", "layout", _MEASURED_LAYOUT)
            return
        if not has_workload_layout(self.known.definitions.get(trace.definition), workload, evaluation):
            message = "measured another layout than that of its workload, and does not count for it; measure it again"
            self.findings.warning(place, message, "other-layout", _MEASURED_LAYOUT)

    def _check_workload(self, trace: Trace, place: str) -> None:
        if definition := self.known.definitions.get(trace.definition):
            _WorkloadChecks(definition, trace.workload, place, self.findings, self.blobs).run()

    def _check_performance(self, performance: Performance, place: str) -> None:
        for field in ("latency_ms", "reference_latency_ms", "speedup_factor"):
            value = getattr(performance, field)
            if not 0 < value < math.inf:
                message = f"is {value}, which no measurement gives; the trace counts in no ranking: remove or repeat it"
                self.findings.warning(place, message, "performance", f"$.evaluation.performance.{field}")

    def _check_folders(self, trace: Trace, place: str) -> None:
        """Compare ``traces/<author>/<op_type>/`` with the record."""
        parts = self.file.parts
        solution = self.known.solutions.get(str(trace.solution))
        definition = self.known.definitions.get(trace.definition)
        if len(parts) != 4 or parts[0] != data_files.TRACES or solution is None or definition is None:
            return
        wanted = data_files.traces_file(solution[1], definition)
        if list(parts[:3]) != wanted.split("/")[:3]:
            self.findings.error(place, f"belongs to {wanted}; move it", "path-contradicts")


def validate(path: str | os.PathLike[str] | None = None) -> Report:
    """Check every file of the data set at a path; None means ``FIB_DATASET_PATH`` or the default.

    Bad data is reported, never raised, and so is a folder that has no record. Files are read one at a time, and of
    tensors only the headers, so that large sets need little memory.

    Raises:
        DataSetNotFound: There is no such directory (a FileNotFoundError).
    """
    root = os.fspath(get_fib_dataset_path() if path is None else Path(path))
    if not os.path.isdir(root):
        raise DataSetNotFound(root)
    findings = Findings()
    known = _Known()
    files = list_files(root, data_files.DEFINITIONS, ".json", findings)
    for name, group in named_files(files, "definition", findings).items():
        definitions = [_checked_definition(one.file, findings) for one in group]
        known.definitions[name] = definitions[0] if len(group) == 1 else None
    files = list_files(root, data_files.SOLUTIONS, ".json", findings)
    for name, group in named_files(files, "solution", findings).items():
        solutions = [_checked_solution(one.file, known.definitions, findings) for one in group]
        known.solutions[name] = solutions[0] if len(group) == 1 else None
    blobs = _BlobChecks(root, findings)
    for folder in (data_files.WORKLOADS, data_files.TRACES):
        for file in list_files(root, folder, ".jsonl", findings):
            _FileChecks(file, known, findings, blobs).run()
    findings.add(*load_traffic(root).problems)
    if not findings.errors and not findings.counts:
        findings.add(missing_data(root))
    return findings.report(root)


def _checked_definition(file: DataFile, findings: Findings) -> Definition | None:
    """The definition of a file; None if it is bad."""
    definition = read_json(file, Definition, findings)
    if definition is not None:
        findings.counts["definitions"] += 1
        _check_place(file, data_files.definition_file(definition), findings)
        _check_definition(definition, file.name, findings)
    return definition


def _checked_solution(
    file: DataFile, definitions: Mapping[str, Definition | None], findings: Findings
) -> tuple[str, str] | None:
    """The definition and the author of the solution of a file; None if it is bad."""
    solution = read_json(file, Solution, findings)
    if solution is None:
        return None
    findings.counts["solutions"] += 1
    if solution.definition not in definitions:
        message = str(UnknownName("definition", solution.definition, tuple(definitions)))
        findings.error(file.name, message, "unknown-definition", "$.definition")
    elif definition := definitions[solution.definition]:
        _check_place(file, data_files.solution_file(solution, definition), findings)
    return solution.definition, solution.author


def _check_place(file: DataFile, wanted: str, findings: Findings) -> None:
    """Report a file that lies elsewhere than its record belongs."""
    parts = tuple(wanted.rpartition(".")[0].split("/"))
    if file.stem == parts[-1] and len(file.parts) != len(parts):
        findings.warning(file.name, f"lies at another depth than usual; move it to {wanted}", "unusual-path")
    elif file.parts != parts:
        message = f"its record belongs to {wanted}; move it, or correct the record"
        findings.error(file.name, message, "path-contradicts")


def _check_definition(definition: Definition, place: str, findings: Findings) -> None:
    known = (*definition.axes, *definition.inputs)
    for index, text in enumerate(definition.constraints):
        for name in sorted(constraint_names(text) - frozenset(known)):
            message = f"{name!r} is neither an axis nor an input: {UnknownName('name', name, known)}"
            findings.error(place, message, "constraint", f"$.constraints[{index}]")
    for field, specs in (("inputs", definition.inputs), ("outputs", definition.outputs)):
        for name, spec in specs.items():
            if too_large := _size_problem(spec, definition.const_axes):
                findings.error(place, too_large, "size", f"$.{field}.{name}")
    functions = [node for node in parse_source(definition.reference).body if isinstance(node, ast.FunctionDef)]
    run, inputs = [node.args for node in functions if node.name == "run"][-1], list(definition.inputs)
    parameters = [argument.arg for argument in (*run.posonlyargs, *run.args)]
    text = f"run takes ({', '.join(parameters)}), the inputs are ({', '.join(inputs)})"
    if not _takes(run, len(inputs)):
        findings.error(place, f"{text}: it cannot be called with them", "reference-parameters", "$.reference")
    elif run.vararg is None and parameters[: len(inputs)] != inputs:
        message = f"{text}; arguments are passed in the order of the inputs"
        findings.warning(place, message, "reference-parameters", "$.reference")
    if unknown := undefined_names(definition.reference):
        message = f"uses {', '.join(unknown)}, which nothing in it defines; add what is missing"
        findings.warning(place, message, "reference-names", "$.reference")


def _takes(run: ast.arguments, count: int) -> bool:
    """Whether a function can be called with `count` positional arguments."""
    positional = len(run.posonlyargs) + len(run.args)
    is_named_required = any(default is None for default in run.kw_defaults)
    is_enough = positional - len(run.defaults) <= count
    return is_enough and not is_named_required and (run.vararg is not None or count <= positional)


# -- workloads ---------------------------------------------------------------------------------------

STORED_DTYPES: Mapping[DType, tuple[str, ...]] = MappingProxyType({
    DType.FLOAT32: ("F32",), DType.FLOAT16: ("F16",), DType.BFLOAT16: ("BF16",), DType.FLOAT8_E4M3FN: ("F8_E4M3",),
    DType.FLOAT8_E5M2: ("F8_E5M2",), DType.FLOAT4_E2M1: ("F4", "U8", "I8"), DType.INT64: ("I64",),
    DType.INT32: ("I32",), DType.INT16: ("I16",), DType.INT8: ("I8",), DType.UINT8: ("U8",), DType.BOOL: ("BOOL",),
    DType.FLOAT64: ("F64",),
})  # fmt: skip
"""The names of each dtype in a file; fp4 may also be stored two to a byte."""


class _BlobChecks:
    """Checks blobs, each file once; of a bad file only the first mention is reported."""

    def __init__(self, root: str, findings: Findings) -> None:
        self._root = Path(root)
        self._findings = findings
        self._headers: dict[str, dict[str, StoredTensor] | None] = {}

    def check(
        self, source: SafetensorsInput, spec: TensorSpec, shape: tuple[int, ...] | None, place: str, path: str
    ) -> None:
        """Report the problems of the tensor that an input names, of which the workload's axes tell the shape."""
        file = source.path.removeprefix("./")
        if file not in self._headers:
            self._headers[file] = self._read(file, place, f"{path}.path")
        header = self._headers[file]
        if header is None:
            return
        stored = header.get(source.tensor_key)
        if stored is None:
            message = f"{file} has no tensor {source.tensor_key!r} (it has {_listed(header)})"
            self._findings.error(place, message, "missing-tensor", f"{path}.tensor_key")
            return
        for message in _contradictions(stored, spec, shape):
            self._findings.error(place, f"{file}: {message}", "blob-contradicts", path)

    def _read(self, file: str, place: str, path: str) -> dict[str, StoredTensor] | None:
        """The tensors of a file; None if it is bad, which is reported."""
        try:
            header = stored_tensors(self._root, file)
        except BlobError as error:
            remedy = "; get it, or remove the workloads that name it" if error.code == "missing-blob" else ""
            self._findings.error(place, f"the blob {file} {error.problem}{remedy}", error.code, path)
            return None
        self._findings.counts["blobs"] += 1
        return header


def _contradictions(stored: StoredTensor, spec: TensorSpec, shape: tuple[int, ...] | None) -> list[str]:
    wanted = STORED_DTYPES[spec.dtype]
    messages = []
    if stored.dtype not in wanted:
        messages.append(f"the tensor is {stored.dtype}, the definition says {spec.dtype} ({_listed(wanted)})")
    if spec.shape is None:
        if stored.shape:
            messages.append(f"the tensor has shape {list(stored.shape)}, the definition says it is a scalar")
    elif len(stored.shape) != len(spec.shape):
        axes = ", ".join(spec.shape)
        messages.append(f"the tensor has shape {list(stored.shape)}, the definition has the axes [{axes}]")
    elif shape is not None and stored.shape != shape and len(wanted) == 1:
        sizes = ", ".join(f"{axis}={size}" for axis, size in zip(spec.shape, shape, strict=True))
        messages.append(f"the tensor has shape {list(stored.shape)}, the axes say {list(shape)} ({sizes})")
    return messages


def _listed(names: Iterable[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:8]) + (", ..." if len(shown) > 8 else "")


MAX_TENSOR_BYTES = 1 << 40
"""More than any device holds: an error in an axis."""

_BITS = {dtype: int(found[0]) if (found := re.search(r"\d+", dtype)) else 8 for dtype in DType}
"""Of an element: the first number in the name of its dtype; a bool takes a byte."""


@attrs.frozen
class _WorkloadChecks:
    """Checks of one workload against its definition."""

    definition: Definition
    workload: Workload
    place: str
    """Place of the workload: file and line."""
    findings: Findings
    blobs: _BlobChecks

    def run(self) -> None:
        """Report every contradiction between the workload and its definition."""
        sizes = self._check_axes()
        self._check_input_names()
        shapes = {name: _shape(spec, sizes) for name, spec in self.definition.inputs.items()}
        for name, source in self.workload.inputs.items():
            if spec := self.definition.inputs.get(name):
                self._check_input(name, spec, source, shapes[name])
        if len(sizes) == len(self.definition.axes):
            self._check_layout(sizes)
            self._check_sizes(sizes)
            self._check_constraints(sizes)

    def _check_axes(self) -> dict[str, int]:
        """Report contradictions in the axes; returns the sizes that are known."""
        given, axes = self.workload.axes, self.definition.axes
        for axis in given.keys() - axes.keys():
            self._error(f"axes.{axis}", f"the definition has no such axis: {UnknownName('axis', axis, tuple(axes))}")
        for axis in self.definition.var_axes:
            if axis not in given:
                self._error("axes", f"there is no value for the variable axis {axis!r}; add it")
        for axis, size in self.definition.const_axes.items():
            if given.get(axis, size) != size:
                self._error(f"axes.{axis}", f"is {given[axis]}, the definition fixes it at {size}; leave it out")
        return {axis: given[axis] for axis in self.definition.var_axes if axis in given} | self.definition.const_axes

    def _check_input_names(self) -> None:
        given, inputs = self.workload.inputs, self.definition.inputs
        if unknown := [name for name in given if name not in inputs]:
            known = f"{UnknownName('input', unknown[0], tuple(inputs))}{_more(unknown)}"
            self._error(child_path("inputs", unknown[0]), f"the definition has no such input: {known}")
        if missing := [name for name, spec in inputs.items() if name not in given and not spec.optional]:
            message = f"the required input {missing[0]!r} is missing{_more(missing)}; say where it comes from"
            self._error("inputs", message)

    def _check_input(self, name: str, spec: TensorSpec, source: Any, shape: tuple[int, ...] | None) -> None:
        path = f"inputs.{name}"
        match source:
            case ScalarInput() if spec.shape is not None:
                hint = " (a shape of [] is a tensor, a scalar's is null)" if not spec.shape else ""
                axes = ", ".join(spec.shape)
                self._error(path, f"is a scalar, the definition has a tensor of shape [{axes}]{hint}")
            case ScalarInput(value=value) if problem := _scalar_problem(value, spec.dtype):
                self._error(f"{path}.value", problem)
            case SafetensorsInput():
                self.blobs.check(source, spec, shape, self.place, f"$.workload.{path}")

    def _check_layout(self, sizes: Mapping[str, int]) -> None:
        try:
            found = workload_strides(self.definition, self.workload)
        except InvalidField as error:
            self._error("extra.layout", f"{error}; correct it, or leave it out")
            return
        for name, strides in found.items():
            shape = _shape(spec := self.definition.inputs[name], sizes)
            if shape and storage_elements(shape, strides) * _BITS[spec.dtype] // 8 > MAX_TENSOR_BYTES:
                message = f"the strides {list(strides)} span more than 2**40 bytes; correct them"
                self._error(f"extra.layout.{name}", message)

    def _check_sizes(self, sizes: Mapping[str, int]) -> None:
        for name, spec in {**self.definition.inputs, **self.definition.outputs}.items():
            if problem := _size_problem(spec, sizes):
                self._error("axes", f"tensor {name!r} {problem}")

    def _check_constraints(self, sizes: Mapping[str, int]) -> None:
        """Check the constraints that name axes, scalars and absent inputs only: the others need values of tensors."""
        inputs = {name: self.workload.inputs.get(name) for name in self.definition.inputs}
        scalars = {name: source.value for name, source in inputs.items() if isinstance(source, ScalarInput)}
        names = {**{name: None for name, source in inputs.items() if source is None}, **scalars, **sizes}
        for text in self.definition.constraints:
            if not constraint_names(text) <= names.keys():
                continue
            try:
                problem = "does not hold" if not evaluate_constraint(text, names) else ""
            except ConstraintError as error:
                problem = error.problem if constraint_names(text) <= sizes.keys() else ""
            if problem:
                given = ", ".join(f"{axis}={size}" for axis, size in self.workload.axes.items()) or "no axes given"
                self._error("axes", f"the definition's constraint {text!r} {problem} with {given}", "constraint")

    def _error(self, path: str, message: str, code: str = "workload") -> None:
        self.findings.error(self.place, message, code, f"$.workload.{path}")


def _more(names: Sequence[str]) -> str:
    return f" (and {counted(len(names) - 1, 'more name')} likewise)" if len(names) > 1 else ""


def _shape(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """The shape of a tensor; None of a scalar, or if a size is unknown."""
    if spec.shape is None or not sizes.keys() >= set(spec.shape):
        return None
    return tuple(sizes[axis] for axis in spec.shape)


def _size_problem(spec: TensorSpec, sizes: Mapping[str, int]) -> str | None:
    """Say that a tensor exceeds `MAX_TENSOR_BYTES`; None if it does not, or if its size is unknown."""
    size_bytes = math.prod(_shape(spec, sizes) or ()) * _BITS[spec.dtype] // 8
    if size_bytes <= MAX_TENSOR_BYTES:
        return None
    axes = ", ".join(f"{axis}={sizes[axis]}" for axis in spec.shape or ())
    return f"would take 2**{size_bytes.bit_length() - 1} bytes or more, above 2**40 ({axes}); correct the axes"


def _scalar_problem(value: float | bool, dtype: DType) -> str | None:
    is_right = {bool: dtype is DType.BOOL, int: dtype is not DType.BOOL, float: dtype.startswith(("float", "bfloat"))}[
        type(value)
    ]
    return None if is_right else f"is {value!r}, the definition says {dtype}; write a value of that type"
