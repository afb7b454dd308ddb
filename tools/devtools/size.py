"""Sizes of the repository, and the budget in `tools/size_budget.toml` that they must keep."""

import ast
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .repository import git

BUDGET = "tools/size_budget.toml"
# Sources of solutions are data: the package reads them and never imports them.
_DATA = ("/fib_bench/demo/",)


class Sizes:
    """The files of a checkout that git knows, and what they measure."""

    def __init__(self, root: Path) -> None:
        self._root = root
        listed = git(root, "ls-files", "--cached", "--others", "--exclude-standard")
        if listed is None:
            raise FileNotFoundError(f"{root} is no git checkout; sizes are those of the files that git lists")
        self._files = [path for path in sorted(set(listed.splitlines())) if (root / path).is_file()]

    def sources(self, *folders: str) -> list[str]:
        """The Python files below folders, without data; a folder such as `packages/*/src` may have a star."""
        found = [path for path in self._files if path.endswith(".py") and _is_below(path, folders)]
        return [path for path in found if not _is_data(path)]

    def tests(self) -> list[str]:
        """All Python files of tests."""
        folders = ("packages/*/tests", "tests-integration", "tools/tests", "docs/tests")
        return [path for path in self._files if path.endswith(".py") and _is_below(path, folders)]

    def lines(self, paths: Iterable[str]) -> int:
        """The lines of files, blank ones included."""
        return sum(len((self._root / path).read_bytes().splitlines()) for path in paths)

    def words(self) -> int:
        """The words of all Markdown files."""
        return sum(len((self._root / path).read_text().split()) for path in self._files if path.endswith(".md"))

    def function_lengths(self, paths: Iterable[str]) -> list[int]:
        """The lines of each function, with its docstring and without its decorators."""
        trees = (ast.parse((self._root / path).read_text()) for path in paths)
        return [
            (node.end_lineno or node.lineno) - node.lineno + 1
            for tree in trees
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]


def _is_below(path: str, folders: Iterable[str]) -> bool:
    parts = path.split("/")
    patterns = (folder.split("/") for folder in folders)
    return any(
        len(parts) > len(pattern) and all(want in ("*", part) for want, part in zip(pattern, parts, strict=False))
        for pattern in patterns
    )


def _is_data(path: str) -> bool:
    return any(folder in path for folder in _DATA) and not path.endswith("/demo/__init__.py")


def measure(root: Path, budget: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Names, sizes and limits, in the order of the budget."""
    sizes = Sizes(root)
    everything = sizes.sources("packages/*/src")
    rows = [
        (f"{name}: lines", sizes.lines(sizes.sources(f"packages/{name}/src")), limit)
        for name, limit in budget["source"].items()
    ]
    rows += [
        (f"{name}: lines", sizes.lines(sizes.sources(*part["folders"])), part["lines"])
        for name, part in budget.get("parts", {}).items()
    ]
    whole = {
        "lines of source": sizes.lines(everything),
        "files of source": len(everything),
        "lines of tests": sizes.lines(sizes.tests()),
        "words of Markdown": sizes.words(),
    }
    return rows + [(name, whole[name], limit) for name, limit in budget["repository"].items()]


def describe_functions(root: Path) -> str:
    """The median, the 90th percentile and the maximum of the lengths of functions."""
    sizes = Sizes(root)
    lengths = sorted(sizes.function_lengths(sizes.sources("packages/*/src")))
    if not lengths:
        return "no functions"
    tenth = lengths[min(len(lengths) - 1, len(lengths) * 9 // 10)]
    return f"{len(lengths)} functions: median {statistics.median(lengths):.0f} lines, 90 % below {tenth + 1}"


def table(rows: Sequence[tuple[str, int, int]]) -> str:
    """Rows as text; what is over its limit is marked."""
    lines = [f"{'':46}{'now':>9}{'limit':>9}"]
    lines += [f"{name:46}{size:9,}{limit:9,}{'  over' if size > limit else ''}" for name, size, limit in rows]
    return "\n".join(lines)


def check(root: Path) -> tuple[str, list[str]]:
    """The table of sizes, and the problems: sizes over their limits, packages without one."""
    budget = tomllib.loads((root / BUDGET).read_text())
    rows = measure(root, budget)
    names = {path.parent.name for path in root.glob("packages/*/pyproject.toml")}
    missing = [f"{BUDGET} has no limit for {name}" for name in sorted(names - set(budget["source"]))]
    over = [f"{name}: {size:,} is over the limit of {limit:,}" for name, size, limit in rows if size > limit]
    if over:
        over.append(f"remove something, or raise the limit in {BUDGET} and say why in the commit")
    return f"{table(rows)}\n{describe_functions(root)}", missing + over
