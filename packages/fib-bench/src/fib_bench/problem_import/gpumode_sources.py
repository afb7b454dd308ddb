"""Files of a GPU MODE problem: the modules that a file imports, and facts that the source of the reference states."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from ..authoring.sources import read_sources
from .errors import ProblemError

_SUBMISSION = "@SUBMISSION@"
_TOLERANCES = ("rtol", "atol")


@attrs.frozen
class ProblemFiles:
    """The Python files of a problem, by the name that others import them by."""

    paths: Mapping[str, Path]

    @classmethod
    def of_task(cls, folder: Path, task: Mapping[str, Any]) -> ProblemFiles:
        """The files that a task lists, and those beside it."""
        paths = {path.stem: path for path in sorted(folder.glob("*.py"))}
        listed = task.get("files") or []
        for entry in listed if isinstance(listed, list) else []:
            name, source = (
                (str(entry.get(key, "")) for key in ("name", "source")) if isinstance(entry, dict) else ("", "")
            )
            if name.endswith(".py") and source.endswith(".py") and source != _SUBMISSION:
                paths[Path(name).stem] = folder / source
        return cls({name: path for name, path in paths.items() if name.isidentifier() and name != "submission"})

    def imported_by(self, source: str, where: str) -> dict[str, str]:
        """The sources of the modules that a source imports, directly or not; each behind those that it imports.

        Raises:
            KernelFileError: A file cannot be read.
            ProblemError: A source does not parse.
        """
        found: dict[str, str] = {}
        self._collect(source, where, found, ())
        return found

    def _collect(self, source: str, where: str, found: dict[str, str], above: tuple[str, ...]) -> None:
        for name in _imports(source, where):
            if name in self.paths and name not in found and name not in above:
                (file,) = read_sources(self.paths[name])
                self._collect(file.content, str(self.paths[name]), found, (*above, name))
                found[name] = file.content


def part_names(reference: str) -> tuple[str, ...]:
    """The names that `ref_kernel` gives the parts of its data; that of the data itself if it does not unpack it."""
    for node in ast.walk(ast.parse(reference)):
        if isinstance(node, ast.FunctionDef) and node.name == "ref_kernel" and node.args.args:
            data = node.args.args[0].arg
            for inner in ast.walk(node):
                match inner:
                    case ast.Assign(targets=[ast.Tuple(elts=elements)], value=ast.Name(id=value)) if value == data:
                        return tuple(e.id if isinstance(e, ast.Name) else "_" for e in elements)
            return (data,)
    return ()


def tolerances_of(reference: str) -> dict[str, float]:
    """The tolerances that the reference states when it makes its check."""
    for node in ast.walk(ast.parse(reference)):
        match node:
            case ast.Call(func=ast.Name(id="make_match_reference"), keywords=keywords):
                return {
                    keyword.arg: float(keyword.value.value)
                    for keyword in keywords
                    if keyword.arg in _TOLERANCES
                    and isinstance(keyword.value, ast.Constant)
                    and isinstance(keyword.value.value, int | float)
                }
    return {}


def _imports(source: str, where: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise ProblemError(where, f"does not parse: {error}") from error
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
