"""From one style of calling to the other.

Value-returning calls of destination-passing functions: for each runnable one function is generated
that does no more than it must: look up the outputs' shapes by the inputs' shapes, allocate, call.
Shapes are derived and checked against the definition once for each combination of input shapes.

What value-returning functions return is brought into one form, or copied into buffers.
"""

from __future__ import annotations

import functools
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fib_schema import Definition

_MAX_KNOWN_SHAPES = 4096

_TEMPLATE = """
def value_returning({parameters}):
    _key = ({shapes})
    _sizes = _known(_key)
    if _sizes is None:
        _sizes = _derive(_key, ({arguments}))
    {allocate}
    _function({call})
    return {result}
"""


def value_returning(function: Callable[..., Any], definition: Definition) -> Callable[..., Any]:
    """Generate the call; it raises `AxisError` where the inputs' shapes do not fit the definition. Imports torch."""
    import torch

    names = [_python_name(name, index) for index, name in enumerate(definition.inputs)]
    outputs = [f"_out{index}" for index in range(len(definition.outputs))]
    code = _TEMPLATE.format(
        parameters=", ".join(_parameters(names, definition)),
        shapes=_listed(_shapes(names, definition)),
        arguments=_listed(names),
        allocate=_allocations(outputs, _device(names, definition)),
        call=", ".join((*names, *outputs)),
        result=outputs[0] if len(outputs) == 1 else (", ".join(outputs) or "None"),
    )
    shapes = _KnownShapes(definition)
    scope: dict[str, Any] = {
        "_known": shapes.known.get,
        "_derive": shapes.derive,
        "_empty": torch.empty,
        "_function": function,
        **{f"_dtype{index}": dtype for index, dtype in enumerate(definition.torch_output_dtypes)},
    }
    exec(code, scope)  # noqa: S102 - made of our template and of identifiers that Definition has checked
    generated: Callable[..., Any] = scope["value_returning"]
    generated.__name__ = generated.__qualname__ = definition.name
    return generated


class _KnownShapes:
    """Output shapes by input shapes."""

    def __init__(self, definition: Definition) -> None:
        self.known: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
        self._definition = definition

    def derive(self, key: tuple[Any, ...], args: tuple[Any, ...]) -> list[tuple[int, ...]]:
        axes = self._definition.get_axes_values_from_inputs(args)
        shapes = [shape or () for shape in self._definition.get_output_shapes(axes)]
        if len(self.known) >= _MAX_KNOWN_SHAPES:
            self.known.clear()
        self.known[key] = shapes
        return shapes


def _python_name(name: str, index: int) -> str:
    """The input's own name, for the sake of error messages, where Python allows it."""
    return f"input{index}" if keyword.iskeyword(name) or name.startswith("_") else name


def _parameters(names: list[str], definition: Definition) -> list[str]:
    specs = list(definition.inputs.values())
    return [
        f"{name}=None" if all(spec.optional for spec in specs[index:]) else name for index, name in enumerate(names)
    ]


def _shapes(names: list[str], definition: Definition) -> list[str]:
    return [
        f"None if {name} is None else {name}.shape" if spec.optional else f"{name}.shape"
        for name, spec in zip(names, definition.inputs.values(), strict=True)
        if spec.shape is not None
    ]


def _device(names: list[str], definition: Definition) -> str:
    """An expression for the device of the first tensor that is there."""
    expression = "None"
    for name, spec in reversed(list(zip(names, definition.inputs.values(), strict=True))):
        if spec.shape is not None:
            expression = f"({expression} if {name} is None else {name}.device)" if spec.optional else f"{name}.device"
    return expression


def _allocations(outputs: list[str], device: str) -> str:
    if not outputs:
        return "pass"
    lines = [f"{name} = _empty(_sizes[{i}], dtype=_dtype{i}, device=_device)" for i, name in enumerate(outputs)]
    return "\n    ".join([f"_device = {device}", *lines])


def _listed(items: list[str]) -> str:
    return "".join(f"{item}, " for item in items)


def unpack_single(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that a tuple or list of one element is returned as that element."""

    @functools.wraps(function, updated=())
    def unpacking(*args: Any) -> Any:
        result = function(*args)
        kind = type(result)
        if (kind is tuple or kind is list) and len(result) == 1:
            return result[0]
        return result

    return unpacking


def list_to_tuple(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that a returned list becomes a tuple."""

    @functools.wraps(function, updated=())
    def converting(*args: Any) -> Any:
        result = function(*args)
        return tuple(result) if type(result) is list else result

    return converting


def copy_results(result: Any, buffers: Sequence[Any], definition: Definition) -> None:
    """Copy what a solution returned into the buffers of a destination-passing call.

    Raises:
        TypeError: There are more or fewer results than outputs, one has another dtype, or a name is missing.
        ValueError: A result does not have its buffer's shape.
    """
    if isinstance(result, Mapping):
        missing = [name for name in definition.outputs if name not in result]
        if missing:
            raise TypeError(f"{definition.name}: the solution returned {list(result)}, without {missing[0]!r}")
        result = [result[name] for name in definition.outputs]
    results = _as_sequence(result, len(buffers))
    if len(results) != len(buffers):
        raise TypeError(f"{definition.name} has {len(buffers)} outputs, the solution returned {len(results)}")
    for name, value, buffer in zip(definition.outputs, results, buffers, strict=True):
        _copy(name, value, buffer)


def _as_sequence(result: Any, count: int) -> Sequence[Any]:
    if isinstance(result, (tuple, list)):
        return result
    return () if result is None and count == 0 else (result,)


def _copy(name: str, value: Any, buffer: Any) -> None:
    if isinstance(value, (bool, int, float)):
        if buffer.dim() != 0:
            raise ValueError(f"output {name!r}: expected shape {list(buffer.shape)}, got the number {value!r}")
        buffer.fill_(value)
        return
    if getattr(value, "shape", None) != buffer.shape:
        found = list(value.shape) if hasattr(value, "shape") else repr(type(value).__name__)
        raise ValueError(f"output {name!r}: expected shape {list(buffer.shape)}, got {found}")
    if value.dtype != buffer.dtype:
        raise TypeError(f"output {name!r}: expected {buffer.dtype}, got {value.dtype}")
    buffer.copy_(value)
