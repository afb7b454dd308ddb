"""Checks that a definition at hand is the one that an adapter converts calls for."""

from __future__ import annotations

import ast
from functools import lru_cache

from fib_schema import Definition
from fib_schema.syntax import parse_source

from .adapter import Adapter, DefinitionRef

_EPSILON_LIMIT = 1e-2
"""Epsilons are below this, all other constants of a reference above."""


def definition_mismatch(adapter: Adapter, reference: DefinitionRef, definition: Definition | None) -> str | None:
    """Reason that calls cannot be described by a definition; None if they can.

    Args:
        adapter: The adapter that made `reference`.
        reference: What the adapter expects of the definition.
        definition: The definition at hand. Without one calls are not routed, and a listener may create it.
    """
    if definition is not None:
        inputs, outputs = tuple(definition.inputs), tuple(definition.outputs)
        if (inputs, outputs) != (reference.inputs, reference.outputs):
            return f"{reference.name!r} in the data set has inputs {inputs} and outputs {outputs}"
    for parameter, value in reference.constants.items():
        constant = None if definition is None else epsilon_constant(definition.reference)
        if constant is None:
            constant = adapter.reference_constants.get(reference.name, {}).get(parameter)
        if constant is None and definition is not None:
            return f"the {parameter} of {reference.name!r} is neither readable from its reference nor declared"
        if constant is not None and constant != value:
            return f"{parameter} is {value!r}, and the reference of {reference.name!r} has {constant!r}"
    return None


@lru_cache(maxsize=1024)
def epsilon_constant(reference: str) -> float | None:
    """The only small positive number in a reference's source; None if there is none, or more than one."""
    numbers = {
        node.value
        for node in ast.walk(parse_source(reference))
        if isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < node.value < _EPSILON_LIMIT
    }
    return numbers.pop() if len(numbers) == 1 else None
