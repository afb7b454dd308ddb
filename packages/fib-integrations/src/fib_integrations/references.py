"""Scalars that a reference has built in, such as the epsilon of a normalisation."""

from __future__ import annotations

import ast
from functools import lru_cache

from fib_schema.syntax import parse_source

_LARGEST = 1e-2
"""An epsilon is smaller than this, and other constants of a reference are not."""


@lru_cache(maxsize=1024)
def small_constant(reference: str) -> float | None:
    """The one small positive number that a reference uses; None if there is none, or more than one."""
    numbers = {
        node.value
        for node in ast.walk(parse_source(reference))
        if isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < node.value < _LARGEST
    }
    return numbers.pop() if len(numbers) == 1 else None
