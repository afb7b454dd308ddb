"""Facts about keys of lookups in Python sources: by local variables, by functions of the source, by memoization."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from .facts import Fact, Kind, Reader

_MEMOIZERS = frozenset({"functools.lru_cache", "functools.cache"})
_LOOKUPS = frozenset({"get", "setdefault", "pop", "__getitem__", "__contains__"})
"""Methods whose first argument is a key; ``append`` and ``add`` are none, because they take values."""
_MAX_KEYS = 40
"""Limit for one variable or function; more would take time quadratic in the source's length."""


def key_facts(
    module: ast.Module, functions: Collection[ast.FunctionDef], reader: Reader, inputs: Collection[str]
) -> Iterator[Fact]:
    """Facts of kind `Kind.KEY` that no single node shows.

    Args:
        module: The parsed source.
        functions: Its functions and methods.
        reader: Reads single nodes.
        inputs: Names of the inputs of the entry function. A memoized function that gets one looks it up by identity.
    """
    made = {function.name: _returned_keys(function, reader) for function in functions}
    for function in functions:
        left = _named_keys(function, made, reader)
        for node in ast.walk(function):
            if (name := _looked_up(node)) in left:  # the first lookup by a variable says enough
                yield from (Fact(Kind.KEY, key, node.lineno) for key in left.pop(name))  # type: ignore[attr-defined]
    memoized = _memoized(module, reader)
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and _last_name(node.func) in memoized:
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield from reader.read_key(argument, node.lineno)
                if isinstance(argument, ast.Name) and argument.id in inputs:
                    yield Fact(Kind.KEY, "id", node.lineno)


def _returned_keys(function: ast.FunctionDef, reader: Reader) -> tuple[str, ...]:
    """Functions and attributes in the results of a function."""
    returns = (node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None)
    return _distinct(fact.text for value in returns for fact in reader.read_key(value, 0))


def _named_keys(
    function: ast.FunctionDef, made: Mapping[str, tuple[str, ...]], reader: Reader
) -> dict[str, tuple[str, ...]]:
    """Functions and attributes in the expression that each local variable was assigned."""
    found: dict[str, tuple[str, ...]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            texts = (fact.text for fact in reader.read_key(node.value, node.lineno))
            called = made.get(_last_name(node.value.func), ()) if isinstance(node.value, ast.Call) else ()
            found[name] = _distinct((*found.get(name, ()), *called, *texts))
    return found


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(islice(dict.fromkeys(texts), _MAX_KEYS))


def _looked_up(node: ast.AST) -> str:
    """The variable that is the key of a lookup."""
    key: ast.AST | None = None
    if isinstance(node, ast.Subscript):
        key = node.slice
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LOOKUPS:
        key = node.args[0] if node.args else None
    elif isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
        key = node.left
    return key.id if isinstance(key, ast.Name) else ""


def _memoized(module: ast.Module, reader: Reader) -> set[str]:
    """Names of functions that the standard library memoizes."""
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and any(_is_memoizer(one, reader) for one in node.decorator_list):
            found.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_memoizer(node.value, reader):
            found |= set(map(_last_name, node.targets))
    return found


def _is_memoizer(node: ast.AST, reader: Reader) -> bool:
    """Whether an expression is a memoizer or a call of one: ``cache``, ``lru_cache(None)``, ``lru_cache(None)(f)``."""
    while isinstance(node, ast.Call):
        node = node.func
    return reader.dotted(node) in _MEMOIZERS


def _last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
