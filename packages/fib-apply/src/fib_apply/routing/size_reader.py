"""Size readers: generated code that reads the axes of a call whose tensors differ from a valid call's in sizes only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

from fib_schema import AxisConst, Definition

from ..key import Axes

SizeReader: TypeAlias = Callable[..., "Axes | None"]
"""Takes a call's arguments. Returns the sizes of the variable axes, sorted by name; None if the call may be invalid."""


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
    sizes = _sizes(definition, inputs)
    is_determined = all(axis in sizes for shape in tensors.values() for axis in shape)
    if not is_determined or not outputs.keys() <= tensors.keys():
        return None
    conditions = [f"{name}.is_contiguous()" for name in tensors]
    conditions += _overlap_conditions([name for name in inputs if name in tensors], list(outputs))
    axes = [axis for axis in sorted(definition.var_axes) if axis in sizes]
    lines = [
        f"def read({', '.join((*inputs, *outputs))}):",
        *_size_lines(tensors, sizes),
        f"    if not ({' and '.join(conditions)}):\n        return None",
        f"    axes = ({''.join(f'({axis!r}, {sizes[axis]}), ' for axis in axes)})",
    ]
    if definition.constraints:
        lines.append("    if constraint_problem({**const_axes, **dict(axes)}) is not None:\n        return None")
    scope: dict[str, Any] = {"constraint_problem": constraint_problem, "const_axes": definition.const_axes}
    code = compile("\n".join([*lines, "    return axes"]), f"<fib_apply sizes of {definition.name}>", "exec")
    exec(code, scope)  # noqa: S102 made of our own names
    read: SizeReader = scope["read"]
    return read


def _sizes(definition: Definition, inputs: Mapping[str, Sequence[str] | None]) -> dict[str, str]:
    """The expression of each axis: its value, or the variable of the first dimension that has it."""
    sizes = {axis: str(spec.value) for axis, spec in definition.axes.items() if isinstance(spec, AxisConst)}
    for name, shape in inputs.items():
        for dim, axis in enumerate(shape or ()):
            sizes.setdefault(axis, f"{name}_{dim}")
    return sizes


def _size_lines(tensors: Mapping[str, Sequence[str]], sizes: Mapping[str, str]) -> Iterator[str]:
    """The sizes of all dimensions, which a constant or another tensor may state as well."""
    for name, shape in tensors.items():
        if not shape:
            continue
        found = [f"{name}_{dim}" for dim in range(len(shape))]
        yield f"    [{', '.join(found)}] = {name}.shape"
        different = [f"{size} != {sizes[axis]}" for axis, size in zip(shape, found, strict=True) if sizes[axis] != size]
        if different:
            yield f"    if {' or '.join(different)}:\n        return None"


def _overlap_conditions(inputs: list[str], outputs: list[str]) -> Iterator[str]:
    """Conditions of outputs in memory of their own. Contiguous tensors take as many bytes as their elements."""
    if outputs:
        for name in (*inputs, *outputs):
            yield f"((p_{name} := {name}.data_ptr()) + (n_{name} := {name}.nbytes)) >= 0"
    for a, b in (*((other, output) for output in outputs for other in inputs), *combinations(outputs, 2)):
        yield f"(p_{a} >= p_{b} + n_{b} or p_{b} >= p_{a} + n_{a})"
