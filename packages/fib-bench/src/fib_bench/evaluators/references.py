"""Static analysis of references. The calls that a definition's reference makes."""

from __future__ import annotations

import ast
import functools

from fib_schema import Definition
from fib_schema.syntax import parse_source


def calls_of(definition: Definition) -> frozenset[str]:
    """The names of the functions and methods that the reference calls."""
    return _calls_in(definition.reference)


@functools.lru_cache(maxsize=64)
def _calls_in(code: str) -> frozenset[str]:
    try:
        functions = [node.func for node in ast.walk(parse_source(code)) if isinstance(node, ast.Call)]
    except SyntaxError:
        return frozenset()  # building the reference reports it
    names = [node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in functions]
    return frozenset(name for name in names if name)
