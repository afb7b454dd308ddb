"""Merging of data sets. No record is lost.

Lines of traces and workloads are written once each, whatever the order of their keys; all other files are copied byte
for byte. Definitions and solutions are identified by their names, workloads by definition and uuid, blobs and counts
of traffic by their paths: different contents under one of these in two sets are a conflict, and a merge with
conflicts writes nothing. Bad records, and several of one name in one set, are copied unchanged; the validation of the
result lists them.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import msgspec
from fib_schema import DataSetNotFound, FibError, Report, TargetNotEmpty, validate
from fib_schema.data_files import list_files
from fib_schema.files import copy_file, make_folders, open_regular, staged
from fib_schema.problems import Findings
from fib_schema.traffic import FOLDER as TRAFFIC

_RECORDS = {"definitions": "definition", "solutions": "solution"}
_LINES = ("workloads", "traces")
_IDENTIFIED = {"blob": "blob", TRAFFIC: "traffic"}
"""Folders of files that are identified by their paths."""


@attrs.frozen
class MergeConflicts(FibError, ValueError):
    """All pairs of different records with one name in two data sets."""

    conflicts: tuple[str, ...]
    """Each names both files, with the line number for records in lines."""

    def __str__(self) -> str:
        shown = "\n  ".join(self.conflicts)
        return f"nothing was written: the data sets have conflicts; rename or remove one of each pair:\n  {shown}"


@attrs.frozen
class MergeReport:
    """The result of a merge."""

    sources: tuple[str, ...]
    notices: tuple[str, ...]
    validation: Report
    """Files that could not be read and were left out, then the validation of the result: bad records are copied."""


def merge(sources: Sequence[str | os.PathLike[str]], target: str | os.PathLike[str]) -> MergeReport:
    """Merge data sets, which are not changed, into a new folder, which is published by one rename.

    `MergeConflicts` if they have any, `TargetNotEmpty` if the target holds something or lies inside a source.
    """
    roots = [Path(source) for source in sources]
    goal = Path(target)
    _check_places(roots, goal)
    with staged(goal) as draft:
        draft.mkdir()
        merged = _Merged(draft)
        for root in roots:
            merged.add_all(root)
        if merged.conflicts:
            raise MergeConflicts(tuple(merged.conflicts))
    found = validate(goal)
    validation = attrs.evolve(found, problems=(*merged.findings.problems, *found.problems))
    return MergeReport(tuple(map(str, roots)), tuple(merged.notices), validation)


def _check_places(roots: Sequence[Path], goal: Path) -> None:
    for root in roots:
        if not root.is_dir():
            raise DataSetNotFound(str(root))
        if goal.resolve().is_relative_to(root.resolve()):
            raise TargetNotEmpty(str(goal), f"lies inside the data set {str(root)!r}")
    if goal.exists() and (not goal.is_dir() or any(goal.iterdir())):
        raise TargetNotEmpty(str(goal), "is not empty" if goal.is_dir() else "is not a folder")


@attrs.define
class _Merged:
    """The draft of the result, and what was written to it."""

    draft: Path
    conflicts: list[str] = attrs.field(factory=list)
    notices: list[str] = attrs.field(factory=list)
    findings: Findings = attrs.field(factory=Findings)
    _sources: dict[str, Path] = attrs.field(factory=dict)
    """The first source of each file of the result."""
    _named: dict[tuple[str, str], list[tuple[Path, str, Any]]] = attrs.field(factory=dict)
    """Source, place and content of definitions, solutions and workloads by kind and name."""
    _digests: set[tuple[str, str, bytes]] = attrs.field(factory=set)
    """Kinds, names and digests of definitions and solutions; those of lines have no name."""

    def add_all(self, root: Path) -> None:
        """Add every file of a source; what is no file, or cannot be read, is left out and noted."""
        for file in list_files(str(root), "", "", self.findings, prefix=f"{root}/"):
            try:
                open_regular(file.path, buffer_bytes=0).close()
            except OSError as error:
                self.findings.error(file.name, f"cannot be read: {error.strerror or error}", "unreadable")
            else:
                self._add(root, Path(file.path).relative_to(root).as_posix())

    def _add(self, root: Path, path: str) -> None:
        folder = path.split("/", 1)[0]
        if folder in _RECORDS and path.endswith(".json"):
            self._add_record(root, path, _RECORDS[folder])
        elif folder in _LINES and path.endswith(".jsonl"):
            self._add_lines(root, path)
        else:
            self._add_other(root, path, _IDENTIFIED.get(folder, "file"))

    def _add_record(self, root: Path, path: str, kind: str) -> None:
        data = (root / path).read_bytes()
        content = _parsed_json(data)
        name = content.get("name") if isinstance(content, dict) else None
        name = name if isinstance(name, str) else path  # no record has the name of a bad file
        if not self._is_new((kind, name, _content_digest(data, content))):
            return
        if self._is_in_conflict(kind, name, root, str(root / path), content):
            return
        if path in self._sources:
            held = f"what it holds: {kind} {name!r} would overwrite another one"
            self._add_conflict("file", path, self._sources[path], root / path, held)
            return
        self._copy(root, path)

    def _is_new(self, identity: tuple[str, str, bytes]) -> bool:
        is_new = identity not in self._digests
        self._digests.add(identity)
        return is_new

    def _is_in_conflict(self, kind: str, name: str, root: Path, place: str, content: Any) -> bool:
        """Note a record; whether another set has one of its name. Several in one set are for the validation."""
        namesakes = self._named.setdefault((kind, name), [])
        others = [(first, other) for source, first, other in namesakes if source != root]
        namesakes.append((root, place, content))
        for first, other in others[:1]:
            self._add_conflict(kind, name, first, place, _describe_difference(other, content))
        return bool(others)

    def _add_lines(self, root: Path, path: str) -> None:
        source, target = root / path, self.draft / path
        make_folders(target.parent)
        with source.open("rb") as stream, target.open("ab") as result:
            for number, line in enumerate(stream, 1):
                if line.strip() and self._is_new_line(line.strip(), root, f"{source}:{number}"):
                    result.write(line.removesuffix(b"\n") + b"\n")

    def _is_new_line(self, line: bytes, root: Path, place: str) -> bool:
        """Whether a line is new; checks workloads for conflicts."""
        content = _parsed_json(line)
        if not self._is_new(("line", "", _content_digest(line, content))):
            return False
        is_workload = isinstance(content, dict) and content.get("evaluation") is content.get("solution") is None
        if is_workload and isinstance(content.get("workload"), dict) and "uuid" in content["workload"]:
            name = f"{content.get('definition')}/{content['workload']['uuid']}"
            self._is_in_conflict("workload", name, root, place, content)
        return True

    def _add_other(self, root: Path, path: str, kind: str) -> None:
        first, second = self._sources.get(path), root / path
        if first is None:
            self._copy(root, path, may_link=kind == "blob")
        elif first.samefile(second) or filecmp.cmp(first, second, shallow=False):
            return
        elif kind != "file":
            self._add_conflict(kind, path, first, second, "its bytes")
        else:
            self.notices.append(f"{path} differs: {first} was copied, {second} was not")

    def _add_conflict(self, kind: str, name: str, first: object, second: object, difference: str) -> None:
        self.conflicts.append(f"{kind} {name!r} differs in {difference}: {first} and {second}")

    def _copy(self, root: Path, path: str, *, may_link: bool = False) -> None:
        self._sources[path] = root / path
        copy_file(root / path, self.draft / path, may_link=may_link)


def _parsed_json(data: bytes) -> Any:
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(data)
    return None


def _content_digest(data: bytes, content: Any) -> bytes:
    """A digest that does not depend on the order of keys; of the bytes if it is not JSON."""
    canonical = data
    if content is not None:
        with suppress(msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            canonical = msgspec.json.encode(content, order="sorted")
    return hashlib.blake2b(canonical, digest_size=16).digest()


def _describe_difference(first: Any, second: Any) -> str:
    if not isinstance(first, dict) or not isinstance(second, dict):
        return "everything"
    missing = object()
    return ", ".join(key for key in {**first, **second} if first.get(key, missing) != second.get(key, missing))
