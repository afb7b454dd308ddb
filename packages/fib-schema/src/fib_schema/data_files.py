"""Files of a data set: the paths that writers use, and the walk that finds what readers take.

The layout is that of the public flashinfer-trace data set. Readers take files at any depth below each folder. A folder
that is no data set is recognised, and with it the data set that was probably meant.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs

from .definition import Definition
from .display import escape_line
from .errors import Problem
from .problems import Findings
from .solution import Solution

DEFINITIONS = "definitions"
SOLUTIONS = "solutions"
WORKLOADS = "workloads"
TRACES = "traces"
BLOB_WORKLOADS = "blob/workloads"
FOLDERS = (DEFINITIONS, SOLUTIONS, WORKLOADS, TRACES)
_MAX_SUGGESTIONS = 3
OTHER_SUFFIX = "other-suffix"
"""The code of warnings about files that readers ignore."""


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
    """A file of a data set as it was when it was found."""

    path: str
    """Path to open."""
    name: str
    """Its path in messages: ``/`` between folders, bytes that are not UTF-8 escaped."""
    size_bytes: int
    """Lines that are appended later are not part of it."""
    modified_ns: int = 0
    inode: int = 0

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders below the root and the file name without its suffix, as they are on disk."""
        parts = self.path.split("/")[-self.name.count("/") - 1 :]
        return (*parts[:-1], parts[-1].rpartition(".")[0])

    @property
    def stem(self) -> str:
        """The file name without its suffix."""
        return self.parts[-1]


def list_files(root: str, folder: str, suffix: str, findings: Findings, *, prefix: str = "") -> list[DataFile]:
    """Every regular file with a suffix, or any, at any depth below a folder of the root, in order of paths.

    Hidden files are left out. Links to folders and out of the root, other kinds of files and other suffixes are
    reported. The folder need not exist. Names are a prefix and the path below the root.
    """
    start, skipped, real_root = os.path.join(root, folder), len(root.rstrip(os.sep)) + 1, os.path.realpath(root)

    def name_of(path: str) -> str:
        return prefix + escape_line(path[skipped:])

    def unreadable(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # never made, or removed meanwhile
            findings.error(name_of(str(error.filename)), f"cannot be read: {error.strerror or error}", "unreadable")

    if os.path.lexists(start) and (os.path.islink(start) or not os.path.isdir(start)):
        findings.error(name_of(start), "is not a folder, so nothing is read from it; put a folder here", "no-folder")
        return []
    found = []
    for entry in _entries(start, unreadable):
        name = name_of(entry.path)
        try:
            if problem := _kind_problem(entry, real_root):
                findings.error(name, *problem)
            elif name.endswith(suffix):
                status = entry.stat()
                found.append(DataFile(entry.path, name, status.st_size, status.st_mtime_ns, status.st_ino))
            else:
                message = f"is not read because its name does not end in {suffix}; rename or remove it"
                findings.warning(name, message, OTHER_SUFFIX)
        except OSError as error:
            unreadable(error)
    return sorted(found, key=lambda file: file.name)


def _entries(folder: str, on_error: Callable[[OSError], object]) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder but folders and hidden entries; no link is followed."""
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as scanned:
                entries = sorted((entry for entry in scanned if entry.name[0] != "."), key=lambda entry: entry.name)
        except OSError as error:
            on_error(error)
            continue
        below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        folders += reversed(below)
        yield from (entry for entry in entries if not entry.is_dir(follow_symlinks=False))


def _kind_problem(entry: os.DirEntry[str], real_root: str) -> tuple[str, str] | None:
    """The message and the code for what is no file, or a link that is not followed."""
    if entry.is_symlink():
        if not is_below(os.path.realpath(entry.path), real_root):
            return "is a link that leads out of the data set; copy what it points to instead", "link-out"
        if not os.path.exists(entry.path):
            return "is a link to nothing or to itself; remove it", "link-to-nothing"
        if entry.is_dir():
            return "is a link to a folder, which is not followed; move the folder here", "link-to-folder"
    if not entry.is_file():
        return "is not a regular file (a pipe, socket or device); remove it", "no-file"
    return None


def is_below(path: str, root: str) -> bool:
    """Whether a resolved path lies below a resolved root."""
    return path.startswith(root.rstrip(os.sep) + os.sep)


def list_data_files(root: str, folders: Mapping[str, str]) -> tuple[dict[str, list[DataFile]], list[Problem]]:
    """The regular files below folders of a data set, and the problems of everything else; the suffix by folder."""
    findings = Findings()
    files = {
        folder: list_files(root, folder, suffix, findings, prefix=f"{root}/") for folder, suffix in folders.items()
    }
    return files, [problem for problem in findings.problems if problem.code != OTHER_SUFFIX]


def missing_data(root: str) -> Problem:
    """The problem of a folder without records, which names the data set that was probably meant."""
    if any(os.path.lexists(os.path.join(root, folder)) for folder in FOLDERS):
        problem = "has no definition, solution, workload or trace"
    else:
        problem = f"is no data set: it has none of the folders {', '.join(FOLDERS)}"
    meant = _meant(Path(os.path.realpath(root)), Path(root))
    remedy = f"pass the folder that has {DEFINITIONS}/ in it"
    if meant:
        remedy = f"did you mean {' or '.join(repr(path) for path in meant)}?"
    return Problem(root, "$", f"{problem}; {remedy}", code="no-data-set")


def _meant(real: Path, root: Path) -> list[str]:
    """The data set that a folder is a part of, or the first data sets right below it."""
    for above in real.parents:
        if (above / DEFINITIONS).is_dir() and real.relative_to(above).parts[0] in {*FOLDERS, "blob"}:
            return [str(above)]
    return [str(found.parent) for found in sorted(root.glob(f"[!.]*/{DEFINITIONS}"))[:_MAX_SUGGESTIONS]]
