"""Validation of a workload against its definition: axes, inputs, sizes and decidable constraints."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs

from .codec import child_path
from .constraints import constraint_names, evaluate_constraint
from .data_files import is_below
from .definition import Definition, DType, TensorSpec
from .display import counted
from .errors import ConstraintError, InvalidField, UnknownName
from .files import open_regular
from .problems import Findings
from .reader import LFS_POINTER
from .strides import storage_elements, workload_strides
from .workload import SafetensorsInput, ScalarInput, Workload

MAX_HEADER_BYTES = 100_000_000
"""The limit of the format itself."""

STORED_DTYPES: Mapping[DType, frozenset[str]] = MappingProxyType({
    DType.FLOAT32: frozenset({"F32"}),
    DType.FLOAT16: frozenset({"F16"}),
    DType.BFLOAT16: frozenset({"BF16"}),
    DType.FLOAT8_E4M3FN: frozenset({"F8_E4M3"}),
    DType.FLOAT8_E5M2: frozenset({"F8_E5M2"}),
    DType.FLOAT4_E2M1: frozenset({"F4", "U8", "I8"}),
    DType.INT64: frozenset({"I64"}),
    DType.INT32: frozenset({"I32"}),
    DType.INT16: frozenset({"I16"}),
    DType.INT8: frozenset({"I8"}),
    DType.BOOL: frozenset({"BOOL"}),
})  # fmt: skip
"""The names of each dtype in a file; fp4 may also be stored two to a byte."""


_STORED_BITS: Mapping[str, int] = MappingProxyType({
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16,
    "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "I8": 8, "U8": 8, "BOOL": 8, "F4": 4,
})  # fmt: skip


class BadHeader(ValueError):
    """The file is not a complete safetensors file; the text says why."""


@attrs.frozen
class StoredTensor:
    """Dtype and shape of a tensor in a file."""

    dtype: str
    shape: tuple[int, ...]


def read_header(path: str) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file.

    Raises:
        BadHeader: It is not a complete safetensors file.
        OSError: It cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        if start == LFS_POINTER[:8]:
            raise BadHeader("it is a Git LFS pointer; run 'git lfs pull' in the data set")
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise BadHeader(f"its header would take {length} bytes of {size}; it is cut off or another format")
        text = file.read(length)
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadHeader(f"its header is not JSON ({error})") from error
    if not isinstance(plain, dict):
        raise BadHeader("its header is not a JSON object")
    data_bytes = size - 8 - length
    tensors = {name: _tensor(name, item, data_bytes) for name, item in plain.items() if name != "__metadata__"}
    _check_order({name: plain[name]["data_offsets"] for name in tensors}, data_bytes)
    return tensors


def _check_order(offsets: Mapping[str, list[int]], data_bytes: int) -> None:
    """Check that the tensors fill the data without overlaps and gaps, which the format requires."""
    done = 0
    for name, (start, end) in sorted(offsets.items(), key=lambda item: item[1]):
        if start != done:
            relation = "overlaps the one before it" if start < done else "leaves a gap after the one before it"
            raise BadHeader(f"tensor {name!r} begins at byte {start} of the data and not at {done}: it {relation}")
        done = end
    if done != data_bytes:
        raise BadHeader(f"its tensors take {done} bytes, and {data_bytes} follow the header")


def _tensor(name: str, plain: Any, data_bytes: int) -> StoredTensor:
    match plain:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(end)]} if all(
            type(size) is int and size >= 0 for size in shape
        ):
            pass
        case _:
            raise BadHeader(f"its header does not give dtype, shape and data_offsets of tensor {name!r}")
    if not 0 <= start <= end <= data_bytes:
        raise BadHeader(f"tensor {name!r} would end at byte {end} of {data_bytes}; the file is cut off")
    wanted = -(-math.prod(shape) * _STORED_BITS.get(dtype, 0) // 8)
    if dtype in _STORED_BITS and wanted != end - start:
        raise BadHeader(f"tensor {name!r} has {end - start} bytes, and {dtype} of shape {shape} takes {wanted}")
    return StoredTensor(dtype, tuple(shape))


class BlobChecks:
    """Checks blobs, each file once; of a bad file only the first mention is reported."""

    def __init__(self, root: str, findings: Findings) -> None:
        self._root = root
        self._real_root = os.path.realpath(root)
        self._findings = findings
        self._headers: dict[str, dict[str, StoredTensor] | None] = {}

    def check(
        self, source: SafetensorsInput, spec: TensorSpec, shape: tuple[int, ...] | None, place: str, path: str
    ) -> None:
        """Report the problems of the tensor that an input names.

        Args:
            source: The file and the tensor.
            spec: The input in the definition.
            shape: The input's shape by the workload's axes; None if it is unknown.
            place: Where the workload is.
            path: The JSON path of the input.
        """
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
        """The header of a file; None if it is bad, which is reported."""
        absolute = os.path.join(self._root, file)
        if not is_below(os.path.realpath(absolute), self._real_root):
            message = f"{file} leads out of the data set through a link; copy the file instead"
            self._findings.error(place, message, "blob-outside", path)
            return None
        try:
            header = read_header(absolute)
        except FileNotFoundError:
            message = f"the blob {file} does not exist; get it, or remove the workloads that name it"
            self._findings.error(place, message, "missing-blob", path)
        except OSError as error:
            message = f"the blob {file} cannot be read: {error.strerror or error}"
            self._findings.error(place, message, "unreadable", path)
        except BadHeader as error:
            message = f"{file} is not a complete safetensors file: {error}"
            self._findings.error(place, message, "bad-blob", path)
        else:
            self._findings.counts["blobs"] += 1
            return header
        return None


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

_BITS: Mapping[DType, int] = MappingProxyType({
    DType.FLOAT32: 32, DType.FLOAT16: 16, DType.BFLOAT16: 16, DType.FLOAT8_E4M3FN: 8, DType.FLOAT8_E5M2: 8,
    DType.FLOAT4_E2M1: 4, DType.INT64: 64, DType.INT32: 32, DType.INT16: 16, DType.INT8: 8, DType.BOOL: 8,
})  # fmt: skip


@attrs.frozen
class WorkloadChecks:
    """Checks of one workload against its definition."""

    definition: Definition
    workload: Workload
    place: str
    """Place of the workload: file and line."""
    findings: Findings
    blobs: BlobChecks

    def run(self) -> None:
        """Report every contradiction between the workload and its definition."""
        sizes = self._check_axes()
        self._check_input_names()
        shapes = {name: self._shape(spec, sizes) for name, spec in self.definition.inputs.items()}
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
        return {
            **{axis: given[axis] for axis in self.definition.var_axes if axis in given},
            **self.definition.const_axes,
        }

    def _check_input_names(self) -> None:
        given, inputs = self.workload.inputs, self.definition.inputs
        if unknown := [name for name in given if name not in inputs]:
            known = UnknownName("input", unknown[0], tuple(inputs))
            self._error(child_path("inputs", unknown[0]), f"the definition has no such input: {known}{_more(unknown)}")
        if missing := [name for name, spec in inputs.items() if name not in given and not spec.optional]:
            message = f"the required input {missing[0]!r} is missing{_more(missing)}; say where it comes from"
            self._error("inputs", message)

    def _check_input(self, name: str, spec: TensorSpec, source: Any, shape: tuple[int, ...] | None) -> None:
        path = f"inputs.{name}"
        match source:
            case ScalarInput() if spec.shape is not None:
                hint = " (a shape of [] is a tensor, a scalar's is null)" if not spec.shape else ""
                self._error(path, f"is a scalar, the definition has a tensor of shape {_axes(spec)}{hint}")
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
            spec, shape = self.definition.inputs[name], self._shape(self.definition.inputs[name], sizes)
            if shape and storage_elements(shape, strides) * _BITS[spec.dtype] // 8 > MAX_TENSOR_BYTES:
                self._error(
                    f"extra.layout.{name}", f"the strides {list(strides)} span more than 2**40 bytes; correct them"
                )

    def _check_sizes(self, sizes: Mapping[str, int]) -> None:
        for name, spec in {**self.definition.inputs, **self.definition.outputs}.items():
            if problem := size_problem(spec, sizes):
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
                message = f"the definition's constraint {text!r} {problem} with {_sizes(self.workload)}"
                self._error("axes", message, "constraint")

    def _shape(self, spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
        if spec.shape is None or not sizes.keys() >= set(spec.shape):
            return None
        return tuple(sizes[axis] for axis in spec.shape)

    def _error(self, path: str, message: str, code: str = "workload") -> None:
        self.findings.error(self.place, message, code, f"$.workload.{path}")


def size_problem(spec: TensorSpec, sizes: Mapping[str, int]) -> str | None:
    """Say that a tensor exceeds `MAX_TENSOR_BYTES`; None if it does not, or if its size is unknown."""
    if spec.shape is None or not sizes.keys() >= set(spec.shape):
        return None
    size_bytes = math.prod(sizes[axis] for axis in spec.shape) * _BITS[spec.dtype] // 8
    if size_bytes <= MAX_TENSOR_BYTES:
        return None
    axes = ", ".join(f"{axis}={sizes[axis]}" for axis in spec.shape)
    return f"would take 2**{size_bytes.bit_length() - 1} bytes or more, above 2**40 ({axes}); correct the axes"


def constraint_problems(definition: Definition) -> list[tuple[int, str]]:
    """The indices of constraints that name no axis and no input, each with the problem."""
    known = (*definition.axes, *definition.inputs)
    return [
        (index, f"{name!r} is neither an axis nor an input: {UnknownName('name', name, known)}")
        for index, text in enumerate(definition.constraints)
        for name in sorted(constraint_names(text) - frozenset(known))
    ]


def _more(names: Sequence[str]) -> str:
    return f" (and {counted(len(names) - 1, 'more name')} likewise)" if len(names) > 1 else ""


def _scalar_problem(value: float | bool, dtype: DType) -> str | None:
    is_right = {
        bool: dtype is DType.BOOL,
        int: dtype is not DType.BOOL,
        float: dtype.startswith(("float", "bfloat")),
    }[type(value)]
    return None if is_right else f"is {value!r}, the definition says {dtype}; write a value of that type"


def _axes(spec: TensorSpec) -> str:
    return f"[{', '.join(spec.shape or ())}]"


def _sizes(workload: Workload) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in workload.axes.items()) or "no axes given"
