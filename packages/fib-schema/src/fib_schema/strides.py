"""Strides of inputs that are not contiguous: how workloads and evaluations state them, and which ones are valid.

Engines pass views: keys and values that share a packed cache, pages whose heads come first, rows with padding. A
workload states the strides of such inputs, in elements, in ``extra["layout"]`` by input; contiguous inputs are absent.
An evaluation states in its own ``extra["layout"]`` the strides that were measured; `trace_facts` has the rule
by which it counts for a workload.

The strides of a dimension of size 1 mean nothing. `normalized_strides` replaces them, so that equal layouts compare
equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ._record import FrozenDict
from .definition import Definition
from .errors import InvalidField
from .trace import Evaluation, Workload

LAYOUT = "layout"
"""The key in ``extra``."""

Strides: TypeAlias = tuple[int, ...]
"""In elements, one for each dimension."""

_MAX_STRIDE = 1 << 62


def normalized_strides(shape: Sequence[int], strides: Sequence[int]) -> Strides | None:
    """The strides, in elements, with those of dimensions of size 1 replaced; None if the tensor is contiguous."""
    if 0 in shape:
        return None
    found: list[int] = []
    dense, is_contiguous, inner = 1, True, 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            stride = inner
        elif stride != dense:
            is_contiguous = False
        found.append(stride)
        inner, dense = size * stride, dense * size
    return None if is_contiguous else tuple(reversed(found))


def strides_problem(shape: Sequence[int], strides: Sequence[int]) -> str | None:
    """Reason why no input can have these strides; None if one can.

    Each element needs a place of its own, because the benchmark writes values to it. Strides are accepted if
    each dimension steps over all elements of those with smaller strides, as views of a contiguous tensor do.
    """
    if len(strides) != len(shape):
        return f"has {len(strides)} strides for {len(shape)} dimensions"
    for stride in strides:
        if type(stride) is not int or not 0 < stride <= _MAX_STRIDE:
            return f"has the stride {stride!r:.40}; strides are positive integers"
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1):
        if stride <= reach:
            return f"has strides {list(strides)} with which elements of shape {list(shape)} share memory"
        reach += (size - 1) * stride
    return None


def storage_elements(shape: Sequence[int], strides: Sequence[int] | None) -> int:
    """The elements from the first to the last one of a tensor, which is contiguous if it has no strides."""
    if strides is None or 0 in shape:
        return math.prod(shape)
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def stated_strides(extra: Mapping[str, Any] | None) -> Mapping[str, Strides]:
    """The strides of inputs that are not contiguous, by name, from the `extra` of a workload or an evaluation.

    Raises:
        InvalidField: The layout is not a mapping from names to lists of positive integers.
    """
    if not extra or LAYOUT not in extra:
        return _NONE
    layout = extra[LAYOUT]
    if not isinstance(layout, Mapping):
        raise InvalidField(f"extra[{LAYOUT!r}]", f"must be an object, is {layout!r:.60}")
    found = {}
    for name, strides in layout.items():
        if not isinstance(strides, list | tuple) or not all(type(s) is int and 0 < s <= _MAX_STRIDE for s in strides):
            problem = f"must be a list of positive integers, is {strides!r:.60}"
            raise InvalidField(f"extra[{LAYOUT!r}][{name!r}]", problem)
        found[name] = tuple(strides)
    return found


_NONE: Mapping[str, Strides] = FrozenDict()


def workload_strides(
    definition: Definition, workload: Workload, evaluation: Evaluation | None = None
) -> Mapping[str, Strides]:
    """The strides of a workload's inputs that are not contiguous, normalized, in the definition's order.

    An evaluation states those that were measured; without one, the workload does.

    Raises:
        InvalidField: The layout is invalid, or does not fit the definition.
        AxisError: An axis has no size.
    """
    stated = stated_strides((evaluation or workload).extra)
    if not stated:
        return _NONE
    shapes = dict(zip(definition.inputs, definition.get_input_shapes(workload.axes), strict=True))
    for name in stated:
        if shapes.get(name) is None:
            problem = "is not a tensor" if name in shapes else "the definition has no such input"
            raise InvalidField(f"extra[{LAYOUT!r}][{name!r}]", problem)
    found = {}
    for name, shape in shapes.items():
        if shape is None or name not in stated or name not in workload.inputs:
            continue
        if invalid := strides_problem(shape, stated[name]):
            raise InvalidField(f"extra[{LAYOUT!r}][{name!r}]", invalid)
        if (strides := normalized_strides(shape, stated[name])) is not None:
            found[name] = strides
    return found


def layout_extra(strides: Mapping[str, Strides]) -> dict[str, Any]:
    """The fields of `extra` that state strides; empty where all inputs are contiguous."""
    return {LAYOUT: {name: list(values) for name, values in strides.items()}} if strides else {}
