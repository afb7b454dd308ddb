"""Axis reader: compiled code that reads the variable axes off the shapes of a call, in a tenth of the generic time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fib_schema import AxisConst, Definition

from .signal_errors import raise_if_from_signal_handler

_ERRORS = (AttributeError, TypeError, ValueError)


def compile_axis_reader(definition: Definition) -> Callable[[Sequence[Any]], dict[str, int]]:
    """A function that does what `Definition.get_axes_values_from_inputs` does.

    Calls that differ from the definition in rank or size are left to that method, which says what is wrong. So are
    all calls of a definition with an axis that only optional inputs have.
    """
    generic = definition.get_axes_values_from_inputs
    source = _source(definition)
    if source is None:
        return generic
    scope: dict[str, Any] = {}
    exec(compile(source, f"<fib_apply axes of {definition.name}>", "exec"), scope)  # noqa: S102 made of our own names
    read: Callable[..., dict[str, int] | None] = scope["read"]

    def read_axes(inputs: Sequence[Any]) -> dict[str, int]:
        try:
            found = read(*inputs)
        except _ERRORS as error:
            raise_if_from_signal_handler(error)
            found = None
        return generic(inputs) if found is None else found

    return read_axes


def _source(definition: Definition) -> str | None:
    """The source of ``read``; it returns None for calls that do not match. None if axes may be without a value."""
    names = {name: f"a{index}" for index, name in enumerate(definition.inputs)}
    variables: dict[str, str] = {}
    lines = [f"def read({', '.join(names.values())}):"]
    for name, spec in sorted(definition.inputs.items(), key=lambda item: item[1].optional):
        if spec.shape is None:
            continue
        prefix, indent = names[name].replace("a", "s"), "    "
        if spec.optional:
            lines.append(f"    if {names[name]} is not None:")
            indent *= 2
        sizes = [f"{prefix}_{dim}" for dim in range(len(spec.shape))]
        lines.append(f"{indent}[{', '.join(sizes)}] = {names[name]}.shape")
        for axis, size in zip(spec.shape, sizes, strict=True):
            declared = definition.axes[axis]
            if not isinstance(declared, AxisConst) and axis not in variables:
                if spec.optional:
                    return None
                variables[axis] = size
                continue
            wanted = str(declared.value) if isinstance(declared, AxisConst) else variables[axis]
            lines += [f"{indent}if {size} != {wanted}:", f"{indent}    return None"]
    axes = ", ".join(f"{axis!r}: {variables[axis]}" for axis in definition.var_axes if axis in variables)
    return "\n".join([*lines, f"    return {{{axes}}}"]) + "\n"
