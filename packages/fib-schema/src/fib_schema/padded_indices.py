"""Padded indices: the index inputs of a definition that engines keep in buffers of fixed size.

An engine that captures CUDA graphs keeps page numbers in a buffer that is longer than any call needs, because later
replays read the same memory with other totals. The last offset says how many elements are valid; those behind it are
left from earlier calls. Definitions describe the valid part: a constraint such as
``num_kv_indices == kv_indptr[-1].item()`` ties its length to the offsets.

fib-bench verifies whether a solution is right with such buffers, and fib-apply routes them to such solutions only.
"""

from __future__ import annotations

import ast
import re

import attrs

from .constraints import constraint_names, parse_constraint
from .definition import Definition
from .errors import ConstraintError

_TOTAL = re.compile(
    r"(?P<axis>\w+) == (?P<offsets>\w+)\[-1\]\.item\(\)|(?P<left>\w+)\[-1\]\.item\(\) == (?P<right>\w+)"
)
PADDED_INDICES = "padded_indices"
"""The field of a trace's timing: whether calls with padded indices were right. Absent where none were made."""


@attrs.frozen
class PaddedIndices:
    """The index inputs that may be padded, and what says how long their valid part is."""

    axis: str
    """The variable axis of the index inputs; no other tensor has it."""
    offsets: str
    """The input whose last element is the number of valid indices."""
    inputs: tuple[str, ...]


def padded_indices_of(definition: Definition) -> PaddedIndices | None:
    """The index inputs of a definition that may be padded; None if there are none.

    Another constraint on values or on the axis rules them out, because offsets of queries must agree with those of
    keys: which values a later replay may have does not follow from the definition then.
    """
    try:
        names = {constraint: constraint_names(constraint) for constraint in definition.constraints}
    except ConstraintError:
        return None
    on_values = [constraint for constraint in names if names[constraint] & definition.inputs.keys()]
    found = _read(definition, on_values[0]) if len(on_values) == 1 else None
    if found is None or any(found.axis in names[constraint] for constraint in names if constraint not in on_values):
        return None
    return found


def _read(definition: Definition, constraint: str) -> PaddedIndices | None:
    """The padded indices that a constraint describes."""
    found = _TOTAL.fullmatch(ast.unparse(parse_constraint(constraint)))
    if found is None:
        return None
    axis, offsets = found["axis"] or found["right"], found["offsets"] or found["left"]
    if axis not in definition.var_axes or offsets not in definition.inputs:
        return None
    if not definition.inputs[offsets].is_integer or len(definition.inputs[offsets].shape or ()) != 1:
        return None
    inputs = {name: spec for name, spec in definition.inputs.items() if axis in (spec.shape or ())}
    if not inputs or any(spec.shape != (axis,) or not spec.is_integer for spec in inputs.values()):
        return None
    if any(axis in (spec.shape or ()) for spec in definition.outputs.values()):
        return None
    return PaddedIndices(axis, offsets, tuple(inputs))
