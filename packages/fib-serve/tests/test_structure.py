"""Tests of the size limits of the package's modules and classes, and of what the API process imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import fib_serve

SOURCES = Path(fib_serve.__file__).parent
MAX_LINES = 400
MAX_METHODS = 20
MAX_FUNCTION_LINES = 60


def test_no_module_is_too_long() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in SOURCES.rglob("*.py")}
    assert "app.py" in lengths
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_class_or_function_is_too_long() -> None:
    found = []
    for path in SOURCES.rglob("*.py"):
        if "versions" in path.parts:
            continue  # a migration is a list of tables
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
                found += [(path.name, node.name)] if len(methods) > MAX_METHODS else []
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno
                found += [(path.name, node.name)] if lines > MAX_FUNCTION_LINES else []
    assert found == []


def test_the_process_of_the_api_imports_neither_torch_nor_what_runs_solutions() -> None:
    code = (
        "import sys, fib_serve.web.process, fib_serve.operation.supervisor\n"
        "print(sorted({'torch', 'triton', 'fib_bench.api', 'fib_compile.builders'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
