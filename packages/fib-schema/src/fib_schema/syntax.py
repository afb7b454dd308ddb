"""Parser of Python code that is never run; suppresses the compiler's warnings, such as those of invalid escapes."""

from __future__ import annotations

import ast
import warnings
from typing import Any

_ATTEMPTS = 100


def parse_source(text: str) -> ast.Module:
    """Parse a module.

    Raises:
        SyntaxError: It does not parse; ValueError, RecursionError or MemoryError if it is not text for a parser.
    """
    parsed: ast.Module = _parsed(text, "exec")
    return parsed


def parse_expression(text: str) -> ast.expr:
    """Parse an expression.

    Raises:
        SyntaxError: It does not parse; ValueError, RecursionError or MemoryError if it is not text for a parser.
    """
    parsed: ast.Expression = _parsed(text, "eval")
    return parsed.body


def _parsed(text: str, mode: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(_ATTEMPTS):
            try:
                return ast.parse(text, mode=mode)
            except SystemError:  # threads that parse at once, before CPython 3.11.9 and 3.12.3 (gh-106905)
                continue
        return ast.parse(text, mode=mode)
