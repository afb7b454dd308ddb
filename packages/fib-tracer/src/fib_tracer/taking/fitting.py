"""What fits a definition: where a function's parameters have its inputs, and which values can be theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from fib_schema import Definition, TensorSpec

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_KINDS_OF_NUMPY = tuple("biuf")


def places_of(definition: Definition, names: Sequence[str]) -> list[int | None] | None:
    """Where each input of a definition is among a function's parameters; None if one is missing.

    By name where all required inputs are among the names, else by position behind ``self``, as calls are routed.
    """
    index = {name: place for place, name in enumerate(names)}
    required = [name for name, spec in definition.inputs.items() if not spec.optional]
    if all(name in index for name in required):
        return [index.get(name) for name in definition.inputs]
    free = [
        place for place, name in enumerate(names) if name not in definition.inputs and name not in definition.outputs
    ]
    if names and names[0] in ("self", "cls"):
        free = free[1:]
    places = []
    for name, spec in definition.inputs.items():
        place = index[name] if name in index else free.pop(0) if free else None
        if place is None and not spec.optional:
            return None
        places.append(place)
    return places


def usual_check(dtypes: Iterable[torch.dtype | None]) -> Callable[..., bool]:
    """A quick function that is true of plain tensors of these dtypes, and of numbers where there is none."""
    scope: dict[str, Any] = {"plain": frozenset(_PLAIN), "numbers": frozenset((bool, int, float)), "type": type}
    scope["has_memory"] = _has_memory
    names, conditions = [], []
    for index, dtype in enumerate(dtypes):
        name = f"p{index}"
        names.append(name)
        scope[f"d{index}"] = dtype
        is_plain = f"type({name}) in plain and {name}.dtype is d{index} and has_memory({name})"
        conditions.append(f"type({name}) in numbers" if dtype is None else is_plain)
    made: Callable[..., bool] = eval(f"lambda {', '.join(names)}: {' and '.join(conditions) or True}", scope)  # noqa: S307 made of numbers
    return made


def problem_of(
    definition: Definition, dtypes: Mapping[str, torch.dtype | None], inputs: Mapping[str, Any]
) -> str | None:
    """Why a call is none of a definition; None if it is one."""
    for name, value in inputs.items():
        dtype = dtypes[name]
        if value is None:
            problem = None if definition.inputs[name].optional else "is None"
        else:
            problem = _problem_of_number(value) if dtype is None else _problem_of_tensor(value, dtype)
        if problem is not None:
            return f"{name} {problem}"
    return None


def _problem_of_number(value: object) -> str | None:
    if isinstance(value, torch.Tensor):
        return None if value.numel() == 1 and not value.is_complex() and _has_memory(value) else "is no single number"
    if isinstance(value, (bool, int, float)) or _is_numpy_number(value):
        return None
    return f"is no number: {type(value).__name__}"


def _problem_of_tensor(value: Any, dtype: torch.dtype) -> str | None:
    if type(value) not in _PLAIN:
        return f"is no plain tensor: {type(value).__name__}"
    if value.dtype is not dtype:
        return f"is {value.dtype}, not {dtype}"
    return None if _has_memory(value) else f"is no plain tensor: {value.layout}, {value.device}, without memory"


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements lie where it says: not of a sparse one, of one on ``meta``, or of a wrapper's."""
    try:
        return tensor.data_ptr() != 0 or tensor.numel() == 0
    except RuntimeError:
        return False


def _is_numpy_number(value: Any) -> bool:
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    return kind in _KINDS_OF_NUMPY and getattr(value, "shape", None) == ()


def kind_of_number(spec: TensorSpec) -> type:
    """What a scalar input is in Python."""
    return bool if spec.dtype == "bool" else int if spec.is_integer else float


def number(kind: type, value: Any) -> Any:
    """Equal numbers in one spelling, that of the definition: 1 and 1.0 are the same scale, and so is NumPy's.

    Args:
        kind: See `kind_of_number`.
        value: A number; what is not equal to any of that kind stays as it is.
    """
    if type(value) is kind:
        return value
    plain = value.item() if hasattr(value, "item") else value
    try:
        made = kind(plain)
    except (OverflowError, ValueError):  # too large for a float; no whole number
        return plain
    return made if made == plain else plain
