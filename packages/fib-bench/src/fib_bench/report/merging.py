"""Merging of data sets. No record is lost, and every choice is reported.

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
from collections import Counter
from collections.abc import Mapping, Sequence
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
_KINDS = ("definitions", "solutions", "workloads", "traces", "blobs", "files")
_SHOWN_CONFLICTS = 20


@attrs.frozen
class Conflict:
    """Two different records with the same name."""

    kind: str
    name: str
    first: str
    second: str
    """The files, with the line number for records in lines."""
    difference: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} differs in {self.difference}: {self.first} and {self.second}"


@attrs.frozen
class MergeConflicts(FibError, ValueError):
    """All conflicts between data sets."""

    conflicts: tuple[Conflict, ...]

    def __str__(self) -> str:
        lines = [str(conflict) for conflict in self.conflicts[:_SHOWN_CONFLICTS]]
        if (more := len(self.conflicts) - _SHOWN_CONFLICTS) > 0:
            lines.append(f"{more} more (--json lists all)")
        shown = "\n  ".join(lines)
        return f"nothing was written: the data sets have conflicts; rename or remove one of each pair:\n  {shown}"


@attrs.frozen
class MergeReport:
    """The result of a merge."""

    sources: tuple[str, ...]
    target: str
    counts: Mapping[str, int]
    """The numbers of ``definitions``, ``solutions``, ``workloads``, ``traces``, ``blobs`` and other ``files``."""
    repeated: Mapping[str, int]
    """The numbers of duplicates, which were written once."""
    notices: tuple[str, ...]
    """Warnings for the user."""
    problems: tuple[str, ...]
    """Files that could not be read and were left out."""
    validation: Report
    """The validation of the result: bad records are copied unchanged."""

    @property
    def is_ok(self) -> bool:
        """Whether nothing was left out and the result is valid."""
        return not self.problems and self.validation.is_ok

    def to_plain(self) -> dict[str, Any]:
        """As plain objects, for JSON."""
        return {**attrs.asdict(self, recurse=False), "validation": self.validation.to_plain()}


def merge(sources: Sequence[str | os.PathLike[str]], target: str | os.PathLike[str]) -> MergeReport:
    """Merge data sets, which are not changed, into a new folder, which is published by one rename.

    Raises:
        DataSetNotFound: There is no such source.
        TargetNotEmpty: The target holds something, or lies inside a source.
        MergeConflicts: There are conflicts; nothing was written.
        OSError: The target cannot be written.
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
    return MergeReport(
        sources=tuple(map(str, roots)),
        target=str(goal),
        counts=_in_order(merged.counts),
        repeated=_in_order(merged.repeated),
        notices=tuple(merged.notices),
        problems=tuple(map(str, merged.findings.problems)),
        validation=validate(goal),
    )


def _in_order(counts: Counter[str]) -> dict[str, int]:
    return {kind: counts[kind] for kind in _KINDS if counts[kind]}


def _check_places(roots: Sequence[Path], goal: Path) -> None:
    for root in roots:
        if not root.is_dir():
            raise DataSetNotFound(str(root))
        if goal.resolve().is_relative_to(root.resolve()):
            raise TargetNotEmpty(str(goal), f"lies inside the data set {str(root)!r}")
    if goal.exists() and (not goal.is_dir() or any(goal.iterdir())):
        raise TargetNotEmpty(str(goal), "is not empty" if goal.is_dir() else "is not a folder")


@attrs.frozen
class _Record:
    """A record of a source, or one of its lines."""

    kind: str
    name: str
    root: Path
    place: str
    content: Any
    """None if it is not JSON."""


@attrs.define
class _Merged:
    """The draft of the result, and what was written to it."""

    draft: Path
    conflicts: list[Conflict] = attrs.field(factory=list)
    notices: list[str] = attrs.field(factory=list)
    findings: Findings = attrs.field(factory=Findings)
    counts: Counter[str] = attrs.field(factory=Counter)
    repeated: Counter[str] = attrs.field(factory=Counter)
    _sources: dict[str, Path] = attrs.field(factory=dict)
    """The first source of each file of the result."""
    _named: dict[tuple[str, str], list[_Record]] = attrs.field(factory=dict)
    """Records and workloads by kind and name."""
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
        if self._is_repeated(f"{kind}s", (kind, name, _content_digest(data, content))):
            return
        if self._is_in_conflict(_Record(kind, name, root, str(root / path), content)):
            return
        if path in self._sources:
            held = f"what it holds: {kind} {name!r} would overwrite another one"
            self.conflicts.append(Conflict("file", path, str(self._sources[path]), str(root / path), held))
            return
        self._copy(root, path)

    def _is_repeated(self, kinds: str, identity: tuple[str, str, bytes]) -> bool:
        """Whether a record was there before; counts it."""
        is_repeated = identity in self._digests
        (self.repeated if is_repeated else self.counts)[kinds] += 1
        self._digests.add(identity)
        return is_repeated

    def _is_in_conflict(self, record: _Record) -> bool:
        """Note a record; whether another set has one of its name.

        Several in one set are its own problem, which the validation reports.
        """
        namesakes = self._named.setdefault((record.kind, record.name), [])
        other = next((each for each in namesakes if each.root != record.root), None)
        namesakes.append(record)
        if other is not None:
            difference = _describe_difference(other.content, record.content)
            self.conflicts.append(Conflict(record.kind, record.name, other.place, record.place, difference))
        return other is not None

    def _add_lines(self, root: Path, path: str) -> None:
        """Append the new lines of a file."""
        source, target = root / path, self.draft / path
        make_folders(target.parent)
        with source.open("rb") as stream, target.open("ab") as result:
            for number, line in enumerate(stream, 1):
                if line.strip() and self._is_new(line.strip(), root, f"{source}:{number}"):
                    result.write(line.removesuffix(b"\n") + b"\n")

    def _is_new(self, line: bytes, root: Path, place: str) -> bool:
        """Whether a line is new; checks workloads for conflicts."""
        content = _parsed_json(line)
        is_workload = isinstance(content, dict) and content.get("evaluation") is content.get("solution") is None
        if self._is_repeated("workloads" if is_workload else "traces", ("line", "", _content_digest(line, content))):
            return False
        if is_workload and isinstance(content.get("workload"), dict) and "uuid" in content["workload"]:
            name = f"{content.get('definition')}/{content['workload']['uuid']}"
            self._is_in_conflict(_Record("workload", name, root, place, content))
        return True

    def _add_other(self, root: Path, path: str, kind: str) -> None:
        kinds = "blobs" if kind == "blob" else "files"
        first, second = self._sources.get(path), root / path
        if first is None:
            self._copy(root, path, may_link=kind == "blob")
            self.counts[kinds] += 1
        elif first.samefile(second) or filecmp.cmp(first, second, shallow=False):
            self.repeated[kinds] += 1
        elif kind != "file":
            self.conflicts.append(Conflict(kind, path, str(first), str(second), "its bytes"))
        else:
            self.notices.append(f"{path} differs: {first} was copied, {second} was not")

    def _copy(self, root: Path, path: str, *, may_link: bool = False) -> None:
        self._sources[path] = root / path
        copy_file(root / path, self.draft / path, may_link=may_link)


# -- contents of records -----------------------------------------------------------------------


def _parsed_json(data: bytes) -> Any:
    """The value of a JSON text, or None if it is invalid."""
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
    """The fields in which two JSON values differ."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return "everything"
    missing = object()
    return ", ".join(key for key in {**first, **second} if first.get(key, missing) != second.get(key, missing))
