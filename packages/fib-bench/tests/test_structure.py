"""Tests of the size limits of the package's modules and classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import fib_bench

SOURCES = Path(fib_bench.__file__).parent
MAX_LINES = 400
MAX_METHODS = 20


def modules() -> Iterator[tuple[str, str]]:
    """The path and the text of each module; solutions and references of the demo and the self-test are data."""
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES)
        is_data = name.parts[0] in ("demo", "selftest") and len(name.parts) > 2
        if not is_data:
            yield str(name), path.read_text("utf-8")


def methods(node: ast.ClassDef) -> list[str]:
    return [item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_the_modules_are_found() -> None:
    names = [name for name, _ in modules()]
    assert "judge/evaluate.py" in names
    assert "selftest/run.py" in names
    assert not any("exploits" in name for name in names)


def test_no_module_is_too_long() -> None:
    lengths = {name: len(text.splitlines()) for name, text in modules()}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_class_has_too_many_methods() -> None:
    classes = [
        (f"{name}: {node.name}", len(methods(node)))
        for name, text in modules()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    ]
    assert [found for found in classes if found[1] > MAX_METHODS] == []
