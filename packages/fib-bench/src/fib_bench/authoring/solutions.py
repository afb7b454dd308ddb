"""Solutions from kernels. Every change is a new version; no file is overwritten."""

from __future__ import annotations

import fcntl
import getpass
import os
import re
from contextlib import ExitStack, suppress
from itertools import chain, count
from pathlib import Path

import attrs
from fib_schema import BuildSpec, InvalidRecord, Solution, SourceFile, TraceSet
from fib_schema.hardware import unknown_targets

_VERSION = re.compile(r"_v([1-9]\d*)$")


@attrs.frozen
class Added:
    """A solution in a data set."""

    solution: Solution
    path: Path | None
    """Its file; None if it was there before."""

    @property
    def is_new(self) -> bool:
        """Whether it was added; otherwise the data set had the same code and settings."""
        return self.path is not None


def add_version(
    root: Path, definition: str, base: str, author: str, spec: BuildSpec, sources: tuple[SourceFile, ...]
) -> Added:
    """Add a solution to a data set, unless the data set has one with the same code and settings.

    The name is `base`, or `base` with the next of ``_v2``, ``_v3`` and so on; an `UnknownName` is that of a definition
    or hardware.
    """
    for error in unknown_targets(spec.target_hardware, "cpu"):
        raise error
    solution = Solution(base, definition, author, spec, sources)
    with ExitStack() as stack:  # processes that add at a time would choose the same name
        stack.callback(os.close, folder := os.open(root, os.O_RDONLY))
        with suppress(OSError):  # not every file system of a network has locks of folders
            fcntl.flock(folder, fcntl.LOCK_EX)
        trace_set = TraceSet.from_path(root)
        op_type = trace_set.get_definition(definition).op_type
        if (same := _find_same(trace_set, solution)) is not None:
            return Added(same, None)
        solution = attrs.evolve(solution, name=_next_name(trace_set, root, solution))
        trace_set.add_solutions([solution])
    return Added(solution, root / "solutions" / author / op_type / definition / f"{solution.name}.json")


def _find_same(trace_set: TraceSet, solution: Solution) -> Solution | None:
    content = solution.hash()
    for name in trace_set.solution_names(solution.definition):
        try:
            other = trace_set.get_solution(name)
        except InvalidRecord:
            continue
        if other is not None and other.hash() == content:
            return other
    return None


def versions_before(trace_set: TraceSet, solution: Solution) -> list[str]:
    """The earlier versions of a solution, the latest first."""
    name, number = _version_of(solution.name)
    versions = {
        found: other
        for other in trace_set.solution_names(solution.definition)
        if (found := _version_of(other))[0] == name and found[1] < number
    }
    return [versions[key] for key in sorted(versions, reverse=True)]


def _version_of(name: str) -> tuple[str, int]:
    match = _VERSION.search(name)
    return _VERSION.sub("", name), int(match[1]) if match else 1


def _next_name(trace_set: TraceSet, root: Path, solution: Solution) -> str:
    files = (file.stem for file in (root / "solutions").rglob("*.json"))  # a name in two files is no solution's
    taken, stem = {*trace_set.solution_names(), *files}, _VERSION.sub("", solution.name)
    if stem in taken and stem not in trace_set.solution_names(solution.definition):
        stem = f"{stem}_{solution.definition}"
    versions = chain([stem], (f"{stem}_v{number}" for number in count(2)))
    return next(name for name in versions if name not in taken)


def base_name(path: Path) -> str:
    """The name of a solution from that of its file or folder."""
    return _allowed(path.resolve().stem if path.is_file() else path.resolve().name) or "kernel"


def default_author() -> str:
    """The name of the user, as far as a path may hold it."""
    try:
        return _allowed(getpass.getuser()) or "local"
    except (KeyError, OSError):
        return "local"


def _allowed(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip("._-")[:100]
