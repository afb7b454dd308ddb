"""Parser of Python code that is never run; suppresses the compiler's warnings, such as those of invalid escapes."""

from __future__ import annotations

import ast
import builtins
import symtable
import warnings
from collections.abc import Iterator
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
    """Parse an expression, with the errors of `parse_source`."""
    parsed: ast.Expression = _parsed(text, "eval")
    return parsed.body


def undefined_names(text: str) -> list[str]:
    """The names that a module's code uses, and that neither it nor Python defines.

    None are known of code that imports ``*``, or that is too deeply nested to be analysed.
    """
    known, used = {*vars(builtins), "__name__", "__file__", "__builtins__"}, set()
    try:
        nodes = ast.walk(parse_source(text))
        with warnings.catch_warnings(action="ignore"):
            table = symtable.symtable(text, "module", "exec")
    except (RecursionError, MemoryError):
        return []
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in nodes):
        return []
    for scope in _scopes(table):
        for symbol in scope.get_symbols():
            is_of_module = scope.get_type() == "module" or symbol.is_global()
            if is_of_module and symbol.is_referenced():
                used.add(symbol.get_name())
            if is_of_module and (symbol.is_assigned() or symbol.is_imported()):
                known.add(symbol.get_name())
    return sorted(used - known)


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _scopes(child)


def _parsed(text: str, mode: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(_ATTEMPTS):
            try:
                return ast.parse(text, mode=mode)
            except SystemError:  # threads that parse at once, before CPython 3.11.9 and 3.12.3 (gh-106905)
                continue
        return ast.parse(text, mode=mode)
