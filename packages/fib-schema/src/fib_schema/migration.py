"""Migration of a data set of a legacy schema to the current layout; nothing is lost.

Current records are copied byte for byte. Records that cannot be read or have no place are copied to
``rejected/``; ``rejected/problems.jsonl`` says why.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import attrs

from . import data_files
from ._legacy import upgrade
from ._record import Record
from .data_files import DataFile, is_below, list_files
from .definition import Definition
from .display import counted
from .errors import DataSetNotFound, FibError, Problem, UnknownName
from .files import copy_file, naming, open_regular, read_regular, staged, sync_folders, sync_tree
from .problems import Findings, Report, group_problems, plain_problem
from .reader import parse_record, read_json, read_lines
from .solution import Solution
from .trace import Trace
from .validation import validate

__all__ = ["MigrationReport", "TargetNotEmpty", "migrate", "upgrade"]

R = TypeVar("R", bound=Record)

REJECTED = "rejected"
_MAX_LOG_BYTES = 16 << 20
_FOLDERS = (data_files.DEFINITIONS, data_files.SOLUTIONS, data_files.WORKLOADS, data_files.TRACES)


class _Rewriter:
    """Migrates one file after the other: definitions, then solutions, then lines."""

    def __init__(self, root: str, new_root: str, findings: Findings) -> None:
        self.changes: Counter[str] = Counter()
        self._root = root
        self._new_root = Path(new_root)
        self._findings = findings
        self._definitions: dict[str, Definition] = {}
        self._authors: dict[str, str] = {}

    def definition(self, file: DataFile) -> None:
        """Migrate a definition's file."""
        found = Findings()
        record, text = self._read(file, Definition, found)
        if record is not None and record.name in self._definitions:
            found.error(file.name, f"another file holds a definition named {record.name!r}", "duplicate-name")
        elif record is not None:
            self._definitions[record.name] = record
            self._write(data_files.definition_file(record), text, "definitions")
            return
        self._reject_file(file, found)

    def solution(self, file: DataFile) -> None:
        """Migrate a solution's file."""
        found = Findings()
        record, text = self._read(file, Solution, found)
        definition = self._definition_of(record, file.name, found)
        if record is not None and record.name in self._authors:
            found.error(file.name, f"another file holds a solution named {record.name!r}", "duplicate-name")
        elif record is not None and definition is not None:
            self._authors[record.name] = record.author
            self._write(data_files.solution_file(record, definition), text, "solutions")
            return
        self._reject_file(file, found)

    def lines(self, file: DataFile) -> None:
        """Migrate a file of workloads or traces, line by line."""
        found = Findings()
        lines: dict[str, list[bytes]] = {}
        for number, line in read_lines(file, found):
            problems = Findings()
            path, text = self._place_line(file, line, f"{file.name}:{number}", problems)
            lines.setdefault(path or f"{REJECTED}/{file.name}", []).append(text)
            self._findings.add(*problems.errors)
        for path, group in lines.items():
            self._append(path, b"\n".join([*group, b""]))
        if found.errors:
            self._reject_file(file, found)

    def close(self) -> None:
        """Write the problems of rejected records."""
        if problems := self._findings.errors:
            rows = "".join(json.dumps(plain_problem(problem)) + "\n" for problem in problems)
            self._append(f"{REJECTED}/problems.jsonl", rows.encode())

    def _read(self, file: DataFile, cls: type[R], found: Findings) -> tuple[R | None, bytes]:
        """The current record of a file, and its text: the file's own if the record is current."""
        parsed = read_json(file, cls, found, self._log)
        self.changes.update(parsed.changes)
        return parsed.record, _dumped(parsed.plain, indent=2) + b"\n" if parsed.changes else parsed.text

    def _place_line(self, file: DataFile, line: bytes, place: str, found: Findings) -> tuple[str | None, bytes]:
        """The file of a line in the new set, None if the line is bad or has no place, and its text there."""
        parsed = parse_record(line, Trace, place, found, self._log)
        trace = parsed.record
        definition = self._definition_of(trace, place, found)
        if trace is None or definition is None:
            return None, line.removesuffix(b"\n")
        path = self._path(trace, definition, file)
        if path is None:
            message = str(UnknownName("solution", str(trace.solution), tuple(self._authors)))
            found.error(place, message, "unknown-solution", "$.solution")
            return None, line.removesuffix(b"\n")
        if path.startswith(f"{data_files.WORKLOADS}/") and not file.name.startswith(f"{data_files.WORKLOADS}/"):
            self.changes[data_files.LEGACY_PLACE] += 1
        self.changes.update(parsed.changes)
        self._findings.counts["workloads" if trace.evaluation is None else "traces"] += 1
        return path, _dumped(parsed.plain) if parsed.changes else line.strip()

    def _path(self, trace: Trace, definition: Definition, file: DataFile) -> str | None:
        if trace.solution is None:
            return data_files.workloads_file(definition)
        author = self._authors.get(trace.solution)
        if author is None and len(file.parts) == 4 and file.parts[0] == data_files.TRACES:
            author = Path(file.path).parts[-3]
        return author and data_files.traces_file(author, definition)

    def _definition_of(self, record: Solution | Trace | None, place: str, found: Findings) -> Definition | None:
        if record is None:
            return None
        definition = self._definitions.get(record.definition)
        if definition is None:
            message = str(UnknownName("definition", record.definition, tuple(self._definitions)))
            found.error(place, message, "unknown-definition", "$.definition")
        return definition

    def _log(self, name: str) -> str | None:
        """The text of a log file of the set."""
        with suppress(ValueError, OSError):  # such as a name that no file can have
            path = os.path.realpath(os.path.join(self._root, name))
            if is_below(path, os.path.realpath(self._root)):
                return read_regular(path, _MAX_LOG_BYTES).decode("utf-8", "replace")
        return None

    def _reject_file(self, file: DataFile, found: Findings) -> None:
        """Copy a file that could not be migrated."""
        path = f"{REJECTED}/{file.name}"
        while (self._new_root / path).exists():
            path += "_"
        self._findings.add(*found.errors)
        with suppress(OSError), open_regular(file.path) as handle:  # unreadable: among the problems already
            while part := handle.read(1 << 20):
                self._append(path, part)

    def _write(self, path: str, text: bytes, kind: str) -> None:
        self._append(path, text)
        self._findings.counts[kind] += 1

    def _append(self, path: str, data: bytes) -> None:
        target = self._new_root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with naming(target), target.open("ab") as handle:
            handle.write(data)


def _dumped(plain: Any, indent: int | None = None) -> bytes:
    text = json.dumps(plain, indent=indent, separators=(",", ":") if indent is None else None)
    return text.encode()


@attrs.frozen
class TargetNotEmpty(FibError, FileExistsError):
    """The target of a migration is not empty, is a mount point, or lies inside its source."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path!r} {self.problem}; pass a folder that is new or empty"


@attrs.frozen
class MigrationReport:
    """The result of a migration."""

    source: str
    target: str
    counts: Mapping[str, int]
    """Numbers of ``definitions``, ``solutions``, ``workloads``, ``traces`` and other ``files`` that were written."""
    changes: Mapping[str, int]
    """Each change, with the number of records that it was made in."""
    rejected: tuple[Problem, ...]
    """Reasons for records and files in ``rejected/``; places are those of the source."""
    validation: Report
    """The validation of the new set."""

    @property
    def is_ok(self) -> bool:
        """Whether everything could be read and the result is valid."""
        return not self.rejected and self.validation.is_ok

    def to_text(self) -> str:
        """The report for people, in lines."""
        counts = ", ".join(counted(count, kind.removesuffix("s")) for kind, count in self.counts.items())
        lines = [f"{self.source} -> {self.target}: {counts}"]
        lines += [f"changed in {counted(count, 'record')}: {change}" for change, count in self.changes.items()]
        lines += [f"rejected: {group}" for group in group_problems(self.rejected)]
        return "\n".join([*lines, self.validation.to_text()])

    def to_plain(self) -> dict[str, Any]:
        """The report as plain objects for JSON."""
        return {
            "source": self.source,
            "target": self.target,
            "is_ok": self.is_ok,
            "counts": dict(self.counts),
            "changes": dict(self.changes),
            "rejected": [plain_problem(problem) for problem in self.rejected],
            "validation": self.validation.to_plain(),
        }


def migrate(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> MigrationReport:
    """Rewrite a data set into the current schema and layout, and validate the result.

    The target appears when it is complete and durable. If the migration fails, there is none.

    Args:
        source: The set to read; it is not changed.
        target: A folder that is new or empty. Blobs are hard links where the file system allows it.

    Raises:
        DataSetNotFound: There is no such source (a FileNotFoundError).
        TargetNotEmpty: The target holds something, is a mount point, or lies inside the source (a FileExistsError).
        OSError: The target cannot be written.
    """
    root, new_root = os.fspath(source), os.fspath(target)
    if not os.path.isdir(root):
        raise DataSetNotFound(root)
    _check_target(root, new_root)
    findings = Findings()
    real = os.path.realpath(new_root)
    with staged(real) as stage:
        stage.mkdir()
        changes = _rewrite(root, os.fspath(stage), findings)
        sync_tree(stage)
        if os.path.isdir(real):
            shutil.copymode(real, stage)
    sync_folders([Path(real).parent])
    kinds = ("definitions", "solutions", "workloads", "traces", "files")
    counts = {kind: findings.counts[kind] for kind in kinds}
    return MigrationReport(root, new_root, counts, dict(changes), tuple(findings.errors), validate(new_root))


def _rewrite(root: str, new_root: str, findings: Findings) -> Counter[str]:
    """Write the new set; returns the changes of records."""
    rewriter = _Rewriter(root, new_root, findings)
    _carry_over(root, new_root, findings)
    for file in list_files(root, data_files.DEFINITIONS, ".json", findings):
        rewriter.definition(file)
    for file in list_files(root, data_files.SOLUTIONS, ".json", findings):
        rewriter.solution(file)
    for folder in (data_files.WORKLOADS, data_files.TRACES):
        for file in list_files(root, folder, ".jsonl", findings):
            rewriter.lines(file)
    rewriter.close()
    return rewriter.changes


def _check_target(root: str, new_root: str) -> None:
    real, real_root = os.path.realpath(new_root), os.path.realpath(root)
    if real == real_root or is_below(real, real_root):
        raise TargetNotEmpty(new_root, f"lies inside {root!r}, which is to be migrated")
    if os.path.lexists(new_root) and not os.path.isdir(new_root):
        raise TargetNotEmpty(new_root, "is not a folder")
    if os.path.isdir(new_root) and os.listdir(new_root):
        raise TargetNotEmpty(new_root, "is not empty")
    if os.path.ismount(new_root):
        raise TargetNotEmpty(new_root, "is a mount point, which cannot be replaced by the finished set")


def _carry_over(root: str, new_root: str, findings: Findings) -> None:
    """Copy the files without records: blobs, texts, logs, and files with other suffixes."""
    for entry in sorted(os.listdir(root)):
        if entry not in _FOLDERS and not entry.startswith("."):
            for file in list_files(root, entry, "", findings):
                copy_file(file.path, Path(new_root, os.path.relpath(file.path, root)), may_link=entry == "blob")
                findings.counts["files"] += 1
    for folder in _FOLDERS:
        wanted = ".json" if folder in {data_files.DEFINITIONS, data_files.SOLUTIONS} else ".jsonl"
        for file in list_files(root, folder, "", Findings()):
            if not file.path.endswith(wanted):
                copy_file(file.path, Path(new_root, REJECTED, os.path.relpath(file.path, root)), may_link=False)
                findings.counts["files"] += 1
