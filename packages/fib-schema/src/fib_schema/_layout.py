"""Where things lie in a data set, and what is there.

The layout is that of the public flashinfer-trace data set; readers take files at any depth below
each folder, writers use the paths that the functions here return.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import attrs

from .definition import Definition
from .errors import Problem
from .solution import Solution

DEFINITIONS = "definitions"
SOLUTIONS = "solutions"
WORKLOADS = "workloads"
TRACES = "traces"
BLOB_WORKLOADS = "blob/workloads"
OLDER_WORKLOADS = "traces/workloads/"
"""Where the first release kept workloads; an author of that name may have traces there too."""


def definition_file(definition: Definition) -> str:
    """The path of a definition's file below the root."""
    return f"{DEFINITIONS}/{definition.op_type}/{definition.name}.json"


def solution_file(solution: Solution, definition: Definition) -> str:
    """The path of a solution's file below the root."""
    folder = f"{SOLUTIONS}/{solution.author}/{definition.op_type}/{definition.name}"
    return f"{folder}/{solution.name}.json"


def workloads_file(definition: Definition) -> str:
    """The path of a definition's workloads below the root."""
    return f"{WORKLOADS}/{definition.op_type}/{definition.name}.jsonl"


def traces_file(author: str, definition: Definition) -> str:
    """The path of an author's traces of a definition below the root."""
    return f"{TRACES}/{author}/{definition.op_type}/{definition.name}.jsonl"


def blob_file(definition: Definition, workload_uuid: str) -> str:
    """The path of a workload's tensors below the root."""
    folder = f"{BLOB_WORKLOADS}/{definition.op_type}/{definition.name}"
    return f"{folder}/{definition.name}_{workload_uuid}.safetensors"


@attrs.frozen
class DataFile:
    """A file of the data set as it was when the set was opened."""

    path: str
    size_bytes: int

    @property
    def stem(self) -> str:
        """The file name without folder and suffix."""
        return os.path.basename(self.path).rpartition(".")[0]

    def read(self) -> bytes:
        """The content as of the opening; what was appended later is not part of the snapshot."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(descriptor, self.size_bytes)
            while len(data) < self.size_bytes and (more := os.read(descriptor, self.size_bytes - len(data))):
                data += more
        finally:
            os.close(descriptor)
        return data


def list_files(root: Path, folder: str, suffix: str, problems: list[Problem]) -> list[DataFile]:
    """Every file with `suffix` at any depth below a folder of the root, in the order of paths.

    Hidden files (a writer's temporary ones) are left out; links that lead out of the root are
    refused and reported.
    """
    found = list(_walk(os.path.join(root, folder), suffix, os.path.realpath(root), problems))
    found.sort(key=lambda file: file.path)
    return found


def _walk(folder: str, suffix: str, root: str, problems: list[Problem]) -> Iterator[DataFile]:
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_symlink() and (problem := _link_problem(entry.path, folder, root)):
                problems.append(Problem(entry.path, "$", problem))
            elif entry.is_dir():
                yield from _walk(entry.path, suffix, root, problems)
            elif entry.name.endswith(suffix):
                yield DataFile(entry.path, entry.stat().st_size)


def _link_problem(path: str, folder: str, root: str) -> str | None:
    """Say why a link is not followed, or None if it is."""
    target = os.path.realpath(path)
    if not is_below(target, root):
        return "is a link that leads out of the data set; copy the file instead"
    if not os.path.exists(target):
        return "is a link to nothing; remove it"
    if is_below(os.path.join(os.path.realpath(folder), ""), target):
        return "is a link to a folder that it lies in; remove it"
    return None


def is_below(path: str, root: str) -> bool:
    """Whether a resolved path lies below a resolved root."""
    return path.startswith(root.rstrip(os.sep) + os.sep)
