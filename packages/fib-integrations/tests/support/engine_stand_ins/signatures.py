"""Recorder of the signatures of engines, which are read from their source files without importing them.

usage: python signatures.py DISTRIBUTION VERSION FOLDER PATH ...     prints them as JSON
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable
from pathlib import Path


def read_parameters(folder: Path, paths: Iterable[str]) -> dict[str, str]:
    """The parameters of functions in source files, without annotations, by path."""
    found = {}
    for path in paths:
        module, _, name = path.rpartition(".")
        place = folder / module.replace(".", "/")
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        tree = ast.parse(file.read_text())
        (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
        for argument in ast.walk(function.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        found[path] = ast.unparse(function.args).replace("1e-6", "1e-06")
    return found


if __name__ == "__main__":
    distribution, version, root, *names = sys.argv[1:]
    plain = {"distribution": distribution, "version": version, "parameters": read_parameters(Path(root), names)}
    print(json.dumps(plain, indent=1))
