"""What value-returning solutions return, brought into one form."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from fib_schema import Definition


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
        TypeError: There are more or fewer results than outputs, or one has another dtype.
        ValueError: A result does not have its buffer's shape.
    """
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
