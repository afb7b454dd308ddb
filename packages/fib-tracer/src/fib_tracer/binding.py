"""Binding of a function's calls to a definition: parameter positions, value checks, and the generated callback.

`input_positions` maps a function's parameters to the definition's inputs. `compile_callback` generates the function
that runs before each call: it counts the call and returns if calls of these shapes are not wanted any more. `mismatch`
says why a value cannot be an input of the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from fib_apply.routing.validation import is_plain_type
from fib_schema import Definition, TensorSpec
from fib_schema.strides import Strides, normalized_strides, strides_problem

Callback: TypeAlias = Callable[..., None]
"""Called before each call of a function, with the call's arguments by position."""
_NUMPY_NUMBER_KINDS = tuple("biuf")


def input_positions(definition: Definition, names: Sequence[str]) -> list[int | None] | None:
    """The position of each input of a definition among a function's parameters; None if one is missing.

    Inputs are matched by name if all required ones are among the names, else by position after ``self``, as fib-apply
    routes calls.
    """
    index = {name: position for position, name in enumerate(names)}
    required = [name for name, spec in definition.inputs.items() if not spec.optional]
    if all(name in index for name in required):
        return [index.get(name) for name in definition.inputs]
    named = {*definition.inputs, *definition.outputs}
    free = [position for position, name in enumerate(names) if name not in named]
    if names and names[0] in ("self", "cls"):
        free = free[1:]
    positions = []
    for name, spec in definition.inputs.items():
        position = index[name] if name in index else free.pop(0) if free else None
        if position is None and not spec.optional:
            return None
        positions.append(position)
    return positions


# -- the generated callback --------------------------------------------------------------------------


def compile_callback(
    definition: Definition, positions: Sequence[int | None], count: int, scope: dict[str, Any], *, has_content_key: bool
) -> Callback:
    """Generate a callback, which reads its state from `scope`.

    Args:
        definition: Whose calls are reported.
        positions: Of each input among the parameters.
        count: How many parameters there are.
        scope: ``_counter_of(key)``, which returns the counter of calls that are not wanted any more, ``_key_errors``
            and ``_record(args, key)``.
        has_content_key: Whether the key must tell all contents apart, and not only sizes.
    """
    arguments = "".join("None, " if position is None else f"p{position}, " for position in positions)
    source = f"""
def callback({", ".join(f"p{index}" for index in range(count))}):
    key = None
    try:
        key = {_key_source(definition, positions, has_content_key=has_content_key)}
        count = _counter_of(key)
        if count is not None:
            count()
            return
    except _key_errors:
        key = None
    _record(({arguments}), key)
"""
    exec(compile(source, "<fib_tracer callback>", "exec"), scope)  # noqa: S102 the source contains no user text
    callback: Callback = scope["callback"]
    return callback


def _key_source(definition: Definition, positions: Sequence[int | None], *, has_content_key: bool) -> str:
    """The source of what determines all axes: one input's shape for each axis; for a content key scalars and strides.

    Without a content key, calls of these shapes are told apart by their layouts as little as by their values: a policy
    that has enough of them gets no more.
    """
    specs = definition.inputs
    parameters = {name: f"p{p}" for name, p in zip(specs, positions, strict=True) if p is not None}
    sized = dict.fromkeys(name for name, _ in definition.var_axes_bindings.values())
    parts = [
        f"None if {parameters[name]} is None else {parameters[name]}.shape"
        if specs[name].optional
        else f"{parameters[name]}.shape"
        for name in sized
        if name in parameters
    ]
    if has_content_key:
        parts += [parameter for name, parameter in parameters.items() if specs[name].shape is None]
        parts += [f"{parameter} is None" for name, parameter in parameters.items() if specs[name].optional]
        tensors = [(name, parameter) for name, parameter in parameters.items() if specs[name].shape is not None]
        parts += [_strides_source(parameter, is_optional=specs[name].optional) for name, parameter in tensors]
    return parts[0] if len(parts) == 1 else f"({''.join(part + ', ' for part in parts)})"


def _strides_source(parameter: str, *, is_optional: bool) -> str:
    strides = f"None if {parameter}.is_contiguous() else {parameter}.stride()"
    return f"None if {parameter} is None else {strides}" if is_optional else strides


# -- values ------------------------------------------------------------------------------------------


def mismatch(definition: Definition, dtypes: Mapping[str, torch.dtype | None], inputs: Mapping[str, Any]) -> str | None:
    """Reason that a call does not fit a definition; None if it does."""
    for name, value in inputs.items():
        dtype = dtypes[name]
        if value is None:
            problem = None if definition.inputs[name].optional else "is None"
        else:
            problem = _number_mismatch(value) if dtype is None else _tensor_mismatch(value, dtype)
        if problem is not None:
            return f"{name} {problem}"
    return None


def call_layout(inputs: Mapping[str, Any]) -> tuple[dict[str, Strides], str | None]:
    """The strides of a call's inputs that are not contiguous, by name; and the reason why no workload can have them.

    There is such a reason if elements share memory, for instance.
    """
    found = {}
    problem = None
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor) or value.is_contiguous():
            continue
        strides = normalized_strides(value.shape, value.stride())
        if strides is None:
            continue
        if (invalid := strides_problem(value.shape, strides)) is not None:
            problem = f"{name} {invalid}"
        found[name] = strides
    return found, problem


def _number_mismatch(value: object) -> str | None:
    if isinstance(value, torch.Tensor):
        is_number = value.numel() == 1 and not value.is_complex() and _has_memory(value)
        return None if is_number else "is not a single real number"
    if isinstance(value, (bool, int, float)) or _is_numpy_number(value):
        return None
    return f"is not a number: {type(value).__name__}"


def _tensor_mismatch(value: Any, dtype: torch.dtype) -> str | None:
    if not is_plain_type(type(value)):
        return f"is not a plain tensor: {type(value).__name__}"
    if value.dtype is not dtype:
        return f"is {value.dtype}, not {dtype}"
    return None if _has_memory(value) else f"is not a plain tensor: {value.layout}, {value.device}, without memory"


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor has elements in memory: sparse tensors, ``meta`` tensors and wrappers have not."""
    try:
        return tensor.data_ptr() != 0 or tensor.numel() == 0
    except RuntimeError:
        return False


def _is_numpy_number(value: Any) -> bool:
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    return kind in _NUMPY_NUMBER_KINDS and getattr(value, "shape", None) == ()


def scalar_type(spec: TensorSpec) -> type:
    """The Python type of a scalar input."""
    return bool if spec.dtype == "bool" else int if spec.is_integer else float


def canonical_scalar(kind: type, value: Any) -> Any:
    """A number as the definition's type, so that equal numbers have one form: 1, 1.0 and NumPy's 1.0 are one scale."""
    if type(value) is kind:
        return value
    plain = value.item() if hasattr(value, "item") else value
    try:
        converted = kind(plain)
    except (OverflowError, ValueError):  # too large for a float; not finite
        return plain
    return converted if converted == plain else plain
