"""Migration of a data set of a legacy schema, or of a known variant, to the current layout; nothing is lost.

Current records are copied byte for byte. Records that cannot be read or have no place are copied to
``rejected/``; ``rejected/problems.jsonl`` says why.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from . import data_files
from ._legacy import upgrade
from ._rewrite import REJECTED, Rewriter
from .data_files import is_below, list_files
from .display import counted
from .errors import DataSetNotFound, FibError, Problem
from .files import copy_file, staged, sync_folders, sync_tree
from .problems import Findings, Report, group_problems, plain_problem
from .validation import validate

__all__ = ["MigrationReport", "TargetNotEmpty", "migrate", "upgrade"]

_FOLDERS = (data_files.DEFINITIONS, data_files.SOLUTIONS, data_files.WORKLOADS, data_files.TRACES)


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
            os.rmdir(real)  # Windows replaces no folder
    sync_folders([Path(real).parent])
    return _report(root, new_root, findings, changes)


def _rewrite(root: str, new_root: str, findings: Findings) -> Counter[str]:
    """Write the new set; returns the changes of records."""
    rewriter = Rewriter(root, new_root, findings)
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


def _report(root: str, new_root: str, findings: Findings, changes: Counter[str]) -> MigrationReport:
    kinds = ("definitions", "solutions", "workloads", "traces", "files")
    counts = {kind: findings.counts[kind] for kind in kinds}
    rejected = findings.report(root).problems
    return MigrationReport(root, new_root, counts, dict(changes), rejected, validate(new_root))


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
