"""Size readers: generated code that reads the axes of a call off shapes, in a tenth of the generic time."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

from fib_schema import AxisConst, Definition

Axes: TypeAlias = tuple[tuple[str, int], ...]
"""Sizes of axes by name, sorted."""
SizeReader: TypeAlias = Callable[..., "Axes | None"]
"""Takes a call's arguments. Returns the sizes of the variable axes; None if the call may be invalid."""
_Shapes: TypeAlias = Mapping[str, Sequence[str]]
"""The axes of tensors, by the name of a parameter in generated code."""


def compile_axis_reader(definition: Definition) -> Callable[[Sequence[Any]], dict[str, int]]:
    """A function that does what `Definition.get_axes_values_from_inputs` does.

    Calls that differ from the definition in rank or size are left to that method, which says what is wrong. So are
    all calls of a definition with an axis that only optional inputs have.
    """
    generic = definition.get_axes_values_from_inputs
    tensors = {f"a{i}": spec.shape for i, spec in enumerate(definition.inputs.values()) if spec.shape is not None}
    optional = {f"a{i}" for i, spec in enumerate(definition.inputs.values()) if spec.optional}
    required = {name: shape for name, shape in tensors.items() if name not in optional}
    sizes = _sizes(definition, required)
    if any(axis not in sizes for shape in tensors.values() for axis in shape):
        return generic
    ordered = {**required, **tensors}  # required inputs first: they state the sizes
    axes = ", ".join(f"{axis!r}: {sizes[axis]}" for axis in definition.var_axes if axis in sizes)
    lines = [*_size_lines(ordered, sizes, optional), f"    return {{{axes}}}"]
    read = _compile(definition, [f"a{index}" for index in range(len(definition.inputs))], lines, {})

    def read_axes(inputs: Sequence[Any]) -> dict[str, int]:
        try:
            found = read(*inputs)
        except (AttributeError, TypeError, ValueError):
            found = None
        return generic(inputs) if found is None else found

    return read_axes


def compile_size_reader(
    definition: Definition, constraint_problem: Callable[[Mapping[str, int]], str | None], *, has_outputs: bool
) -> SizeReader | None:
    """Compile the size reader of a definition; None if inputs do not determine all sizes.

    It checks what a guard that ignores sizes does not: contiguous tensors, sizes that agree, constraints, and outputs
    that overlap with no other argument. All optional inputs must be given.

    Args:
        definition: The definition.
        constraint_problem: Says which constraint does not hold for the sizes of all axes.
        has_outputs: Whether outputs are among the arguments, behind the inputs.
    """
    inputs = {f"a{index}": spec.shape for index, spec in enumerate(definition.inputs.values())}
    outputs = {f"b{index}": spec.shape for index, spec in enumerate(definition.outputs.values())} if has_outputs else {}
    tensors = {name: shape for name, shape in {**inputs, **outputs}.items() if shape is not None}
    sizes = _sizes(definition, {name: shape for name, shape in inputs.items() if shape is not None})
    is_determined = all(axis in sizes for shape in tensors.values() for axis in shape)
    if not is_determined or not outputs.keys() <= tensors.keys():
        return None
    conditions = [f"{name}.is_contiguous()" for name in tensors]
    conditions += _overlap_conditions([name for name in inputs if name in tensors], list(outputs))
    axes = [axis for axis in sorted(definition.var_axes) if axis in sizes]
    lines = [
        *_size_lines(tensors, sizes),
        f"    if not ({' and '.join(conditions)}):\n        return None",
        f"    axes = ({''.join(f'({axis!r}, {sizes[axis]}), ' for axis in axes)})",
    ]
    if definition.constraints:
        lines.append("    if constraint_problem({**const_axes, **dict(axes)}) is not None:\n        return None")
    scope = {"constraint_problem": constraint_problem, "const_axes": definition.const_axes}
    return _compile(definition, [*inputs, *outputs], [*lines, "    return axes"], scope)


def _compile(
    definition: Definition, parameters: Sequence[str], lines: Sequence[str], scope: dict[str, Any]
) -> Callable[..., Any]:
    source = "\n".join([f"def read({', '.join(parameters)}):", *lines])
    exec(compile(source, f"<fib_apply sizes of {definition.name}>", "exec"), scope)  # noqa: S102 made of our own names
    read: Callable[..., Any] = scope["read"]
    return read


def _sizes(definition: Definition, tensors: _Shapes) -> dict[str, str]:
    """The expression of each axis: its value, or the variable of the first dimension that has it."""
    sizes = {axis: str(spec.value) for axis, spec in definition.axes.items() if isinstance(spec, AxisConst)}
    for name, shape in tensors.items():
        for dim, axis in enumerate(shape):
            sizes.setdefault(axis, f"{name}_{dim}")
    return sizes


def _size_lines(tensors: _Shapes, sizes: Mapping[str, str], optional: Container[str] = ()) -> Iterator[str]:
    """Lines that read the sizes of all dimensions, and return None where a constant or another tensor differs."""
    for name, shape in tensors.items():
        indent = "    "
        if name in optional:
            yield f"    if {name} is not None:"
            indent = "        "
        found = [f"{name}_{dim}" for dim in range(len(shape))]
        yield f"{indent}[{', '.join(found)}] = {name}.shape"
        different = [f"{size} != {sizes[axis]}" for axis, size in zip(shape, found, strict=True) if sizes[axis] != size]
        if different:
            yield f"{indent}if {' or '.join(different)}:\n{indent}    return None"


def _overlap_conditions(inputs: list[str], outputs: list[str]) -> Iterator[str]:
    """Conditions of outputs in memory of their own. Contiguous tensors take as many bytes as their elements."""
    if outputs:
        for name in (*inputs, *outputs):
            yield f"((p_{name} := {name}.data_ptr()) + (n_{name} := {name}.nbytes)) >= 0"
    for a, b in (*((other, output) for output in outputs for other in inputs), *combinations(outputs, 2)):
        yield f"(p_{a} >= p_{b} + n_{b} or p_{b} >= p_{a} + n_{a})"
