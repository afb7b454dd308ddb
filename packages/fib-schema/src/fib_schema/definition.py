"""Definition of a kernel: its axes, inputs, outputs, constraints and reference code.

Source: the schema of the public flashinfer-trace data set.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import attrs

from . import _record
from ._record import NO_FIELDS, FrozenDict, Record
from .constraints import parse_constraint
from .display import counted
from .errors import AxisError, ConstraintError
from .syntax import parse_source

if TYPE_CHECKING:
    import torch

    Shape: TypeAlias = tuple[int, ...]


class DType(StrEnum):
    """Element types of tensors and scalars."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT4_E2M1 = "float4_e2m1"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"


def _dtype(value: object) -> DType:
    return _record.member_of(DType, "dtype", value)


_ARE_INTEGER = frozenset({DType.INT64, DType.INT32, DType.INT16, DType.INT8, DType.UINT8})


@attrs.frozen
class AxisConst(Record):
    """An axis whose size the definition fixes."""

    value: int = attrs.field(validator=_record.axis_size)
    """Number of elements."""
    description: str | None = None
    """Text for readers."""

    type: ClassVar[str] = "const"
    """JSON tag."""


@attrs.frozen
class AxisVar(Record):
    """An axis whose size each workload chooses."""

    description: str | None = None
    """Text for readers."""

    type: ClassVar[str] = "var"
    """JSON tag."""


AxisSpec: TypeAlias = AxisConst | AxisVar


@attrs.frozen
class TensorSpec(Record):
    """Shape (names of axes; None for a scalar) and element type of an input or output."""

    shape: tuple[str, ...] | None = attrs.field(converter=attrs.converters.optional(_record.to_tuple))
    """Names of axes in order; None for a scalar."""
    dtype: DType = attrs.field(converter=_dtype)
    """Type of the elements."""
    description: str | None = None
    """Text for readers."""
    optional: bool = False
    """Whether a call may pass None."""

    @property
    def is_integer(self) -> bool:
        """Whether the elements are integers; bool is not."""
        return self.dtype in _ARE_INTEGER


@attrs.frozen
class Definition(Record):
    """Computation of a kernel: axes, inputs, outputs, reference code and constraints.

    Raises:
        InvalidField: A field is of the wrong kind; a shape names an unknown axis; an input and an
            output share a name; the reference does not parse or defines no top-level ``run``; a
            constraint is not an allowed expression.
    """

    name: str = attrs.field(validator=_record.name)
    """Unique in a data set."""
    op_type: str = attrs.field(validator=_record.name)
    """Kind of operation; rules for inputs, tolerances and evaluators depend on it."""
    axes: FrozenDict[str, AxisSpec] = attrs.field(converter=_record.to_mapping)
    """Axes of the shapes, by name."""
    inputs: FrozenDict[str, TensorSpec] = attrs.field(converter=_record.to_mapping)
    """Inputs by name, in the order of the parameters of ``run``."""
    outputs: FrozenDict[str, TensorSpec] = attrs.field(converter=_record.to_mapping)
    """Outputs by name, in the order of the results of ``run``."""
    reference: str = attrs.field(repr=False)
    """Python source with a function ``run``: it takes the inputs and returns the expected outputs."""
    tags: tuple[str, ...] = attrs.field(default=(), converter=_record.to_tuple)
    """Labels. ``sparse:...`` has a meaning, others are for readers."""
    description: str | None = attrs.field(default=None, repr=False)
    """Text for readers."""
    constraints: tuple[str, ...] = attrs.field(default=(), converter=_record.to_tuple)
    """Boolean expressions of axes and inputs that hold for each call."""
    extra: FrozenDict[str, Any] = attrs.field(default=NO_FIELDS, converter=_record.to_mapping)
    """Fields beyond the public format."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._check_names()
        self._check_shapes()
        self._check_reference()
        for index, constraint in enumerate(self.constraints):
            try:
                parse_constraint(constraint)
            except ConstraintError as error:
                raise _record.fail(self, f"constraints[{index}]", str(error)) from error

    def _check_names(self) -> None:
        for field in ("axes", "inputs", "outputs"):
            for name in getattr(self, field):
                if not name.isidentifier():
                    raise _record.fail(self, f"{field}[{name!r}]", "is not a Python identifier")
        if shared := self.inputs.keys() & self.outputs.keys():
            raise _record.fail(self, "outputs", f"{min(shared)!r} is an input too; rename one")

    def _check_shapes(self) -> None:
        for field in ("inputs", "outputs"):
            for name, spec in getattr(self, field).items():
                for axis in spec.shape or ():
                    if axis not in self.axes:
                        known = ", ".join(self.axes)
                        problem = f"axis {axis!r} is not among the axes ({known})"
                        raise _record.fail(self, f"{field}[{name!r}].shape", problem)

    def _check_reference(self) -> None:
        try:
            module = parse_source(self.reference)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise _record.fail(self, "reference", f"does not parse: {error}") from error
        if not any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in module.body):
            raise _record.fail(self, "reference", "defines no top-level function 'run'")

    @property
    def const_axes(self) -> dict[str, int]:
        """The sizes of the constant axes, by name."""
        return {n: axis.value for n, axis in self.axes.items() if isinstance(axis, AxisConst)}

    @property
    def var_axes(self) -> list[str]:
        """The names of the variable axes."""
        return [name for name, axis in self.axes.items() if isinstance(axis, AxisVar)]

    @property
    def var_axes_bindings(self) -> dict[str, tuple[str, int]]:
        """Input and dimension from which a variable axis can be read: axis -> (input name, dimension), first place."""
        bindings: dict[str, tuple[str, int]] = {}
        for name, spec in self.inputs.items():
            for dim, axis in enumerate(spec.shape or ()):
                if isinstance(self.axes[axis], AxisVar):
                    bindings.setdefault(axis, (name, dim))
        return bindings

    @property
    def torch_input_dtypes(self) -> list[torch.dtype]:
        """The inputs' dtypes in torch's terms, in order. Imports torch."""
        return [_torch_dtype(spec.dtype) for spec in self.inputs.values()]

    @property
    def torch_output_dtypes(self) -> list[torch.dtype]:
        """The outputs' dtypes in torch's terms, in order. Imports torch."""
        return [_torch_dtype(spec.dtype) for spec in self.outputs.values()]

    def get_axes_values(self, shapes: Sequence[Shape | None] | Mapping[str, Shape | None]) -> dict[str, int]:
        """Read the variable axes off the inputs' shapes.

        There is one shape per input, in order or by name; None for scalars and for optional inputs that are not passed.

        Raises:
            AxisError: A shape has the wrong rank, an axis has two values or none, or a dimension
                contradicts a constant axis.
        """
        values: dict[str, int] = {}
        for name, axes, shape in self._paired_shapes(shapes):
            if len(axes) != len(shape):
                problem = f"input {name!r} has {len(shape)} dimensions, not {len(axes)} {list(axes)}"
                raise AxisError(self.name, axes[0] if axes else "", problem)
            for axis, size in zip(axes, shape, strict=True):
                self._bind(values, axis, int(size), name)
        for axis in self.var_axes_bindings:
            if axis not in values:
                raise AxisError(self.name, axis, "has no value: every input that has it is missing")
        return {axis: values[axis] for axis in self.var_axes if axis in values}

    def get_axes_values_from_inputs(self, inputs: Sequence[Any] | Mapping[str, Any]) -> dict[str, int]:
        """As `get_axes_values`, of input values: anything with ``.shape``, scalars or None."""
        if isinstance(inputs, Mapping):
            return self.get_axes_values({name: getattr(value, "shape", None) for name, value in inputs.items()})
        return self.get_axes_values([getattr(value, "shape", None) for value in inputs])

    def get_input_shapes(self, axes: Mapping[str, int] | None = None) -> list[Shape | None]:
        """The inputs' shapes in order, None for scalars.

        Raises:
            AxisError: A variable axis has no value in `axes`.
        """
        return self._shapes(self.inputs, axes or {})

    def get_output_shapes(self, axes: Mapping[str, int] | None = None) -> list[Shape | None]:
        """The outputs' shapes in order, as `get_input_shapes`."""
        return self._shapes(self.outputs, axes or {})

    def merge_kwargs_to_args(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Order a mixed call into positional arguments: the inputs, then any outputs given.

        Missing optional inputs become None.

        Raises:
            TypeError: An argument is unknown, given twice or missing.
        """
        names = [*self.inputs, *self.outputs]
        if len(args) > len(names):
            raise TypeError(f"{self.name} takes at most {len(names)} arguments, got {len(args)}")
        merged = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                raise TypeError(f"{self.name} has no argument {name!r} (it has {', '.join(names)})")
            if name in merged:
                raise TypeError(f"{self.name} got argument {name!r} twice")
            merged[name] = value
        wanted = names if merged.keys() & self.outputs.keys() else list(self.inputs)
        for name in wanted:
            if name not in merged and not (name in self.inputs and self.inputs[name].optional):
                raise TypeError(f"{self.name} misses argument {name!r}")
        return tuple(merged.get(name) for name in wanted)

    def _paired_shapes(
        self, shapes: Sequence[Shape | None] | Mapping[str, Shape | None]
    ) -> Iterator[tuple[str, tuple[str, ...], Shape]]:
        if not isinstance(shapes, Mapping):
            if len(shapes) != len(self.inputs):
                problem = f"got {counted(len(shapes), 'input')}, expected {len(self.inputs)}: {', '.join(self.inputs)}"
                raise AxisError(self.name, "", problem)
            shapes = dict(zip(self.inputs, shapes, strict=True))
        for name, spec in self.inputs.items():
            shape = shapes.get(name)
            if spec.shape is not None and shape is not None:
                yield name, spec.shape, shape

    def _bind(self, values: dict[str, int], axis: str, size: int, name: str) -> None:
        spec = self.axes[axis]
        wanted = spec.value if isinstance(spec, AxisConst) else values.setdefault(axis, size)
        if size != wanted:
            raise AxisError(self.name, axis, f"is {wanted}, but {size} in input {name!r}")

    def _shapes(self, specs: Mapping[str, TensorSpec], axes: Mapping[str, int]) -> list[Shape | None]:
        shapes = (spec.shape for spec in specs.values())
        return [None if shape is None else tuple(self._size(axis, axes) for axis in shape) for shape in shapes]

    def _size(self, axis: str, axes: Mapping[str, int]) -> int:
        spec = self.axes[axis]
        if isinstance(spec, AxisConst):
            return spec.value
        if axis not in axes:
            raise AxisError(self.name, axis, "is variable and has no value here")
        return axes[axis]


TORCH_DTYPE_NAMES: Mapping[DType, str] = MappingProxyType(
    {dtype: str(dtype) for dtype in DType} | {DType.FLOAT4_E2M1: "float4_e2m1fn_x2"}
)
"""The attribute of torch that stands for each dtype; fp4 is stored two to a byte there."""


def _torch_dtype(dtype: DType) -> torch.dtype:
    import torch

    found: torch.dtype = getattr(torch, TORCH_DTYPE_NAMES[dtype])
    return found
