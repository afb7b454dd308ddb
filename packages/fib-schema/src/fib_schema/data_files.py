"""Files of a data set: the paths that writers use, and the walk that finds what readers take.

The layout is that of the public flashinfer-trace data set. Readers take files at any depth below each folder. A folder
that is no data set is recognised, and with it the data set that was probably meant.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
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
LEGACY_WORKLOADS = "traces/workloads/"
"""Folder of workloads in the first release; an author of that name may have traces there too."""


NO_DATA_SET = "no-data-set"
"""The code of the error about a folder without records."""
_FOLDERS = (DEFINITIONS, SOLUTIONS, WORKLOADS, TRACES)
_MAX_SUGGESTIONS = 3
_SHOWN_NAME = 500
LEGACY_PLACE = "workloads lie below workloads/ now, not below traces/"
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
        parts = self.path.replace(os.sep, "/").split("/")[-self.name.count("/") - 1 :]
        return (*parts[:-1], parts[-1].rpartition(".")[0])

    @property
    def stem(self) -> str:
        """The file name without its suffix."""
        return self.parts[-1]


def list_files(root: str, folder: str, suffix: str, findings: Findings, *, prefix: str = "") -> list[DataFile]:
    """Every regular file with a suffix at any depth below a folder of the root, in order of paths.

    Hidden files are left out. Links out of the root, links to nothing, links to a folder that is read
    already, other kinds of files and other suffixes are reported.

    Args:
        root: The data set's root.
        folder: Below it; it need not exist.
        suffix: Such as ``.json``; empty for any.
        findings: Where problems go.
        prefix: What names begin with, before the path below the root.
    """
    walk = _Walk(os.path.realpath(root), suffix, findings)
    walk.start(os.path.join(root, folder), prefix + escape_line(folder))
    return sorted(walk.found, key=lambda file: file.name)


class _Walk:
    """One walk below a folder. Links are followed last, so that a file is listed under its own path first."""

    def __init__(self, root: str, suffix: str, findings: Findings) -> None:
        self.found: list[DataFile] = []
        self._root = root
        self._suffix = suffix
        self._findings = findings
        self._pending: list[tuple[str, str, str]] = []
        """Paths, names and resolved paths of folders to read."""
        self._links: list[tuple[str, str]] = []
        self._folders: set[str] = set()
        """Resolved paths of folders that were read."""

    def start(self, path: str, name: str) -> None:
        """Visit a folder of the root; nothing if there is none."""
        try:
            os.lstat(path)
        except FileNotFoundError:
            return
        except OSError as error:  # the root cannot be entered
            self._unreadable(name, error)
            return
        self._follow(path, name, is_start=True)
        while self._pending or self._links:
            if self._pending:
                self._read_folder(*self._pending.pop())
            else:
                self._follow(*self._links.pop())

    def _follow(self, path: str, name: str, *, is_start: bool = False) -> None:
        """Visit the target of a link, or the folder where the walk begins."""
        real = os.path.realpath(path)
        if not is_below(real, self._root):
            message = "is a link that leads out of the data set; copy what it points to instead"
            self._findings.error(name, message, "link-out")
        elif not os.path.exists(real):
            self._findings.error(name, "is a link to nothing or to itself; remove it", "link-to-nothing")
        elif os.path.isdir(real):
            self._pending.append((path, name, real))
        elif is_start:
            self._findings.error(name, "is not a folder, so nothing is read from it; remove it", "no-folder")
        else:
            self._add(path, name, lambda: os.stat(real))

    def _read_folder(self, path: str, name: str, real: str) -> None:
        if real in self._folders:
            self._findings.warning(name, "links to a folder that is read already; remove the link", "link-again")
            return
        self._folders.add(real)
        try:
            with os.scandir(path) as entries:
                shown = [entry for entry in sorted(entries, key=_entry_name) if not entry.name.startswith(".")]
                for entry in shown:
                    self._visit(entry, f"{name}/{escape_line(entry.name)}", f"{real}{os.sep}{entry.name}")
            if self._suffix and not shown and name.endswith(self._suffix):
                self._findings.error(name, "is an empty folder in the place of a file; remove it", "no-file")
        except OSError as error:
            self._unreadable(name, error)

    def _visit(self, entry: os.DirEntry[str], name: str, real: str) -> None:
        if entry.is_symlink():
            self._links.append((entry.path, name))
        elif entry.is_dir():
            self._pending.append((entry.path, name, real))
        else:
            self._add(entry.path, name, entry.stat)

    def _add(self, path: str, name: str, stat_file: Callable[[], os.stat_result]) -> None:
        try:
            status = stat_file()
        except FileNotFoundError:  # removed meanwhile
            return
        except OSError as error:
            self._unreadable(name, error)
            return
        if not stat.S_ISREG(status.st_mode):
            self._findings.error(name, "is not a regular file (a pipe, socket or device); remove it", "no-file")
        elif name.endswith(self._suffix):
            self.found.append(DataFile(path, name, status.st_size, status.st_mtime_ns, status.st_ino))
        else:
            message = f"is not read because its name does not end in {self._suffix}; rename or remove it"
            self._findings.warning(name, message, OTHER_SUFFIX)

    def _unreadable(self, name: str, error: OSError) -> None:
        shown = name if len(name) <= _SHOWN_NAME else f"{name[:_SHOWN_NAME]}..."
        self._findings.error(shown, f"cannot be read: {error.strerror or error}", "unreadable")


def _entry_name(entry: os.DirEntry[str]) -> str:
    return entry.name


def is_below(path: str, root: str) -> bool:
    """Whether a resolved path lies below a resolved root."""
    return path.startswith(root.rstrip(os.sep) + os.sep)


def list_data_files(root: str, folders: Mapping[str, str]) -> tuple[dict[str, list[DataFile]], list[Problem]]:
    """The regular files below folders of a data set, and the problems of everything else there.

    Args:
        root: The data set's root.
        folders: The suffixes to list, by folder.
    """
    findings = Findings()
    files = {
        folder: list_files(root, folder, suffix, findings, prefix=f"{root}/") for folder, suffix in folders.items()
    }
    return files, [problem for problem in findings.problems if problem.code != OTHER_SUFFIX]


def missing_data(root: str) -> Problem:
    """The problem of a folder without records, which names the data set that was probably meant."""
    return Problem(root, "$", describe_missing_data(root), code=NO_DATA_SET)


def has_data_folders(root: str) -> bool:
    """Whether a folder has at least one of the folders of a data set."""
    return any(os.path.lexists(os.path.join(root, folder)) for folder in _FOLDERS)


def describe_missing_data(root: str) -> str:
    """Say that a folder without records is not a data set, and which one was probably meant."""
    if has_data_folders(root):
        problem = "has no definition, solution, workload or trace"
    else:
        problem = f"is no data set: it has none of the folders {', '.join(_FOLDERS)}"
    meant = _enclosing(root) or _enclosed(root)
    if not meant:
        return f"{problem}; pass the folder that has {DEFINITIONS}/ in it"
    return f"{problem}; did you mean {' or '.join(repr(path) for path in meant)}?"


def _enclosing(root: str) -> list[str]:
    """The data set that a folder is a part of."""
    path = Path(os.path.realpath(root))
    for above in path.parents:
        if (above / DEFINITIONS).is_dir() and path.relative_to(above).parts[0] in {*_FOLDERS, "blob"}:
            return [str(above)]
    return []


def _enclosed(root: str) -> list[str]:
    """The first data sets right below a folder."""
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except OSError:
        return []
    paths = (os.path.join(root, name) for name in names)
    found = (path for path in paths if os.path.isdir(os.path.join(path, DEFINITIONS)))
    return [path for path, _ in zip(found, range(_MAX_SUGGESTIONS), strict=False)]
