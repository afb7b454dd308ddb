"""Migration of a data set of a legacy schema to the current layout.

Records that cannot be read or have no place are reported and left out; the source keeps them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from . import data_files
from .codec import format_json
from .data_files import DataFile, is_below, list_files, read_json, read_traces
from .definition import Definition
from .errors import DataSetNotFound, FibError, Problem, UnknownName
from .files import copy_file, naming, staged
from .problems import Findings, Report, plain_problem
from .solution import Solution
from .trace import Trace
from .validation import validate


@attrs.frozen
class TargetNotEmpty(FibError, FileExistsError):
    """The target of a migration is not empty, or lies inside its source."""

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
    rejected: tuple[Problem, ...]
    """Reasons for records and files that were left out; places are those of the source."""
    validation: Report
    """The validation of the new set."""

    @property
    def is_ok(self) -> bool:
        """Whether everything could be read and the result is valid."""
        return not self.rejected and self.validation.is_ok

    def to_plain(self) -> dict[str, Any]:
        """The report as plain objects for JSON."""
        return {
            "source": self.source,
            "target": self.target,
            "is_ok": self.is_ok,
            "counts": dict(self.counts),
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
        TargetNotEmpty: The target holds something, or lies inside the source (a FileExistsError).
        OSError: The target cannot be written.
    """
    root, new_root = os.fspath(source), os.fspath(target)
    if not os.path.isdir(root):
        raise DataSetNotFound(root)
    real, real_root = os.path.realpath(new_root), os.path.realpath(root)
    if real == real_root or is_below(real, real_root):
        raise TargetNotEmpty(new_root, f"lies inside {root!r}, which is to be migrated")
    if os.path.lexists(new_root) and not (os.path.isdir(new_root) and not os.listdir(new_root)):
        raise TargetNotEmpty(new_root, "is not empty" if os.path.isdir(new_root) else "is not a folder")
    findings = Findings()
    with staged(real) as stage:
        stage.mkdir()
        _Rewriter(root, stage, findings).run()
        os.sync()
    kinds = ("definitions", "solutions", "workloads", "traces", "files")
    counts = {kind: findings.counts[kind] for kind in kinds}
    return MigrationReport(root, new_root, counts, tuple(findings.errors), validate(new_root))


class _Rewriter:
    """Writes the records of a set to another folder: definitions, then solutions, then lines, then other files."""

    def __init__(self, root: str, new_root: Path, findings: Findings) -> None:
        self._root = root
        self._new_root = new_root
        self._findings = findings
        self._definitions: dict[str, Definition] = {}
        self._authors: dict[str, str] = {}
        self._uuids: dict[str, str] = {}
        """By `_content` of a workload."""

    def run(self) -> None:
        """Write everything."""
        for file in list_files(self._root, data_files.DEFINITIONS, ".json", self._findings):
            self._definition(file)
        for file in list_files(self._root, data_files.SOLUTIONS, ".json", self._findings):
            self._solution(file)
        folders = (data_files.WORKLOADS, data_files.TRACES)
        files = [file for folder in folders for file in list_files(self._root, folder, ".jsonl", self._findings)]
        for file in files:
            self._note_uuids(file)
        for file in files:
            self._lines(file)
        for entry in sorted(os.listdir(self._root)):
            if entry not in data_files.FOLDERS and not entry.startswith("."):
                for file in list_files(self._root, entry, "", self._findings):
                    relative = os.path.relpath(file.path, self._root)
                    copy_file(file.path, self._new_root / relative, may_link=entry == "blob")
                    self._findings.counts["files"] += 1

    def _definition(self, file: DataFile) -> None:
        record = read_json(file, Definition, self._findings, self._upgrade)
        if record is not None and self._is_new("definition", record.name, self._definitions, file):
            self._definitions[record.name] = record
            self._write("definitions", data_files.definition_file(record), format_json(record, indent=2))

    def _solution(self, file: DataFile) -> None:
        record = read_json(file, Solution, self._findings, self._upgrade)
        definition = record and self._definition_of(record, file.name)
        if record and definition and self._is_new("solution", record.name, self._authors, file):
            self._authors[record.name] = record.author
            path = data_files.solution_file(record, definition)
            self._write("solutions", path, format_json(record, indent=2))

    def _lines(self, file: DataFile) -> None:
        lines: dict[tuple[str, str], list[str]] = {}
        for number, trace in read_traces(file, self._findings, self._upgrade):
            if place := self._place(trace, f"{file.name}:{number}"):
                lines.setdefault(place, []).append(format_json(trace))
        for (kind, path), group in lines.items():
            self._write(kind, path, *group)

    def _note_uuids(self, file: DataFile) -> None:
        for line in Path(file.path).read_bytes().splitlines():
            with suppress(ValueError, TypeError, KeyError, RecursionError):  # bad lines are reported when they are read
                plain = json.loads(line)
                self._uuids.setdefault(_content(plain), plain["workload"]["uuid"])

    def _place(self, trace: Trace, place: str) -> tuple[str, str] | None:
        """The kind and the new path of a trace; None if it has no place."""
        definition = self._definition_of(trace, place)
        if definition is None:
            return None
        if trace.solution is None:
            return "workloads", data_files.workloads_file(definition)
        if trace.solution not in self._authors:
            message = str(UnknownName("solution", trace.solution, tuple(self._authors)))
            self._findings.error(place, message, "unknown-solution", "$.solution")
            return None
        return "traces", data_files.traces_file(self._authors[trace.solution], definition)

    def _definition_of(self, record: Solution | Trace, place: str) -> Definition | None:
        definition = self._definitions.get(record.definition)
        if definition is None:
            message = str(UnknownName("definition", record.definition, tuple(self._definitions)))
            self._findings.error(place, message, "unknown-definition", "$.definition")
        return definition

    def _is_new(self, kind: str, name: str, known: Mapping[str, object], file: DataFile) -> bool:
        if name in known:
            self._findings.error(file.name, f"another file holds a {kind} named {name!r}", "duplicate-name")
        return name not in known

    def _upgrade(self, plain: Any, cls: type) -> Any:
        new = upgrade(plain, cls)
        workload = new.get("workload") if cls is Trace and type(new) is dict else None
        if type(workload) is not dict or "uuid" in workload:
            return new
        content = _content(new)
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        return {**new, "workload": {**workload, "uuid": self._uuids.setdefault(content, digest)}}

    def _write(self, kind: str, path: str, *texts: str) -> None:
        target = self._new_root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with naming(target), target.open("a") as file:
            file.writelines(text + "\n" for text in texts)
        self._findings.counts[kind] += len(texts)


# -- legacy records -----------------------------------------------------------------------------------

Plain = dict[str, Any]


def _content(trace: Mapping[str, Any]) -> str:
    """The content of a workload without its uuid, as text."""
    workload = trace["workload"]
    return json.dumps([trace.get("definition"), workload.get("axes"), workload.get("inputs")], sort_keys=True)


def upgrade(plain: Any, cls: type) -> Any:
    """Turn the plain objects of a legacy record into those of a current one, without losing a field.

    Those have ``type``, ``shape: []``, ``error`` and ``environment.device``. Current records are never changed: each
    change needs a marker that the current schema does not have.
    """
    if type(plain) is not dict:
        return plain
    if cls is Definition:
        return _upgraded_definition(plain)
    return _upgraded_trace(plain) if cls is Trace else _upgraded_solution(plain)


def _upgraded_solution(plain: Plain) -> Plain:
    spec = plain.get("spec")
    if type(spec) is not dict or not isinstance(language := spec.get("language"), str):
        return plain
    return plain if language == language.lower() else {**plain, "spec": {**spec, "language": language.lower()}}


def _upgraded_definition(plain: Plain) -> Plain:
    if "op_type" in plain or not isinstance(plain.get("type"), str):
        return plain
    new = {("op_type" if key == "type" else key): value for key, value in plain.items()}
    for field in ("inputs", "outputs"):
        if type(tensors := plain.get(field)) is dict:
            new[field] = {
                name: {**t, "shape": None} if type(t) is dict and t.get("shape") == [] else t
                for name, t in tensors.items()
            }
    return new | {field: [] for field in ("tags", "constraints") if new.get(field, ()) is None}


def _upgraded_trace(plain: Plain) -> Plain:
    """A trace whose log is its ``error``; this field and ``log_file`` stay, as all fields that are not known."""
    evaluation = plain.get("evaluation")
    if plain.get("solution") == "" and evaluation in ({}, None):
        return {**plain, "solution": None, "evaluation": None}  # a workload
    if type(evaluation) is not dict:
        return plain
    error = evaluation.get("error")
    new = {"log": error, **evaluation} if isinstance(error, str) else evaluation
    environment = new.get("environment")
    if type(environment) is dict and "device" in environment and "hardware" not in environment:
        renamed = {("hardware" if key == "device" else key): value for key, value in environment.items()}
        new = {**new, "environment": renamed}
    return {**plain, "evaluation": new}
