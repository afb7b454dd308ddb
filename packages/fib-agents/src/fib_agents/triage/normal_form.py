"""Normal form of Python sources: without code that runs as a program only, and with plain names of variables."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator


def normal_form(module: ast.Module, entry: str | None) -> ast.Module:
    """The module without what does not run in a benchmark: the block ``if __name__ == "__main__"``.

    ``globals()["name"]`` becomes ``name``, so that both count as the same variable.

    Args:
        module: The parsed source, whose nodes are changed.
        entry: The name of the entry function if the source is the only one. Then functions that only the block names
            are left out, too.
    """
    _write_plain_names(module)
    if any(_sets_own_name(node) for node in ast.walk(module)):
        return module
    body = [part for node in module.body for part in _without_program(node)]
    if entry is not None:
        body = _used(body, {name for node in module.body if _is_program(node) for name in _named(node)} - {entry})
    return ast.Module(body, module.type_ignores)


def _used(body: list[ast.stmt], candidates: set[str]) -> list[ast.stmt]:
    """Statements without the functions of some names, and those that these name, that no other statement names."""
    named = [set(_named(node)) for node in body]
    uses = Counter(name for names in named for name in names)
    places: dict[str, list[int]] = {}
    for index, node in enumerate(body):
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            places.setdefault(node.name, []).append(index)
    removed: set[int] = set()
    left = [name for name in candidates if name in places]
    while left:
        name = left.pop()
        for index in places[name]:
            if index not in removed and uses[name] == (name in named[index]):
                removed.add(index)
                uses.subtract(named[index])
                left += [other for other in named[index] if other in places]
    return [node for index, node in enumerate(body) if index not in removed]


def _without_program(node: ast.stmt) -> Iterable[ast.stmt]:
    """The statement, or what runs of it when the source is imported."""
    return node.orelse if isinstance(node, ast.If) and _is_program(node) else [node]


def _is_program(node: ast.stmt) -> bool:
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    test = node.test
    sides = [test.left, *test.comparators]
    is_name = any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
    is_main = any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)
    return len(sides) == 2 and isinstance(test.ops[0], ast.Eq) and is_name and is_main


def _sets_own_name(node: ast.AST) -> bool:
    """Whether a node assigns ``__name__``, after which the block may run."""
    return isinstance(node, ast.Name) and node.id == "__name__" and isinstance(node.ctx, ast.Store)


def _named(tree: ast.AST) -> Iterator[str]:
    """Names of variables and attributes, and texts, which may name something too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _write_plain_names(module: ast.Module) -> None:
    """Replace ``globals()["name"]`` by ``name`` everywhere; not by recursion, because sources can be nested deep."""
    for parent in list(ast.walk(module)):
        for field, value in ast.iter_fields(parent):
            if isinstance(value, list):
                value[:] = [_plain(one) for one in value]
            else:
                setattr(parent, field, _plain(value))


def _plain(node: object) -> object:
    """The name that an expression stands for, or the expression."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Call):
        return node
    function, key = node.value.func, node.slice
    if not isinstance(function, ast.Name) or function.id != "globals":
        return node
    if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
        return node
    return ast.copy_location(ast.Name(key.value, node.ctx), node)
