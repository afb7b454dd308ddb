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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import msgspec
from fib_schema import DataSetNotFound, FibError, Report, TargetNotEmpty, validate
from fib_schema.files import copy_file, make_folders, open_regular, read_regular, staged, walk
from fib_schema.traffic import FOLDER as TRAFFIC

_RECORDS = {"definitions": "definition", "solutions": "solution"}
_LINES = ("workloads", "traces")
_IDENTIFIED = {"blob": "blob", TRAFFIC: "traffic"}
"""Folders of files that are identified by their paths."""
_KINDS = ("definitions", "solutions", "workloads", "traces", "blobs", "files")
_MAX_RECORD_BYTES = 64 << 20
"""The largest record and line that is read; that of data sets is the same."""
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
    """Merge data sets into a new one.

    Args:
        sources: The sets, which are not changed; their order is kept.
        target: A folder that is new or empty; it is published by one rename.

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
            for path in merged.files_of(root):
                merged.add(root, path)
        if merged.conflicts:
            raise MergeConflicts(tuple(merged.conflicts))
    return MergeReport(
        sources=tuple(map(str, roots)),
        target=str(goal),
        counts=_in_order(merged.counts),
        repeated=_in_order(merged.repeated),
        notices=tuple(merged.notices),
        problems=tuple(merged.problems),
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
    problems: list[str] = attrs.field(factory=list)
    counts: Counter[str] = attrs.field(factory=Counter)
    repeated: Counter[str] = attrs.field(factory=Counter)
    _sources: dict[str, Path] = attrs.field(factory=dict)
    """The first source of each file of the result."""
    _named: dict[tuple[str, str], list[_Record]] = attrs.field(factory=dict)
    """Records and workloads by kind and name."""
    _digests: set[tuple[str, str, bytes]] = attrs.field(factory=set)
    """Kinds, names and digests of definitions and solutions; those of lines have no name."""
    _torn: set[str] = attrs.field(factory=set)
    """Files whose last line has no end yet."""

    def files_of(self, root: Path) -> Iterator[str]:
        """Every file below a root, in the order of paths; what is neither file nor folder of it is reported."""
        real = root.resolve()
        for entry in walk(root, enters=lambda folder: not folder.name.startswith("."), on_error=self._leave_out):
            path = Path(entry.path)
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                if path.suffix in (".json", ".jsonl"):
                    self.problems.append(f"{path} is a folder in the place of a file; it was left out")
            elif entry.is_symlink() and os.path.isdir(path):  # noqa: PTH112 never raises
                self.notices.append(f"{path} is a link to a folder; it was left out")
            elif entry.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(real):
                self.notices.append(f"{path} is a link that leads out of the data set; it was left out")
            else:
                yield path.relative_to(root).as_posix()

    def _leave_out(self, path: str | os.PathLike[str], error: OSError) -> None:
        self.problems.append(f"{os.fspath(path)} cannot be read: {error.strerror or error}; it was left out")

    def add(self, root: Path, path: str) -> None:
        """Add a file of a source, given by its path below the root; one that cannot be read is left out."""
        folder = path.split("/", 1)[0]
        is_record = folder in _RECORDS and path.endswith(".json")
        try:
            open_regular(root / path, buffer_bytes=0).close()
            data = read_regular(root / path, _MAX_RECORD_BYTES) if is_record else b""
        except OSError as error:
            self._leave_out(root / path, error)
            return
        if is_record:
            self._add_record(root, path, _RECORDS[folder], data)
        elif folder in _LINES and path.endswith(".jsonl"):
            self._add_lines(root, path)
        else:
            self._add_other(root, path, _IDENTIFIED.get(folder, "file"))

    def _add_record(self, root: Path, path: str, kind: str, data: bytes) -> None:
        content = _parsed_json(data)
        name = content.get("name") if isinstance(content, dict) else None
        name = name if isinstance(name, str) else path  # no record has the name of a bad file
        identity = kind, name, _content_digest(data, content)
        if identity in self._digests:
            self.repeated[f"{kind}s"] += 1
            return
        self._digests.add(identity)
        if self._is_in_conflict(_Record(kind, name, root, str(root / path), content)):
            return
        if path in self._sources:
            held = f"what it holds: {kind} {name!r} would overwrite another one"
            self.conflicts.append(Conflict("file", path, str(self._sources[path]), str(root / path), held))
            return
        self._copy(root, path)
        self.counts[f"{kind}s"] += 1
        if content is None:
            self.notices.append(f"{root / path} is not JSON; it was copied unchanged")

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
        is_first = self._sources.setdefault(path, source) == source
        make_folders(target.parent)
        with open_regular(source) as stream, target.open("ab") as result:
            for number, line in enumerate(iter(lambda: stream.readline(_MAX_RECORD_BYTES + 1), b""), 1):
                if len(line) > _MAX_RECORD_BYTES:
                    problem = f"is longer than {_MAX_RECORD_BYTES} bytes; it was left out, and what follows it"
                    self.problems.append(f"{source}:{number} {problem}")
                    break
                if self._is_new(line.strip(), root, f"{source}:{number}") if line.strip() else is_first:
                    result.write(b"\n" + line if path in self._torn else line)
                    (self._torn.discard if line.endswith(b"\n") else self._torn.add)(path)

    def _is_new(self, line: bytes, root: Path, place: str) -> bool:
        """Whether a line is new; counts it, and checks workloads for conflicts."""
        content = _parsed_json(line)
        is_workload = isinstance(content, dict) and content.get("evaluation") is content.get("solution") is None
        kind = "workloads" if is_workload else "traces"
        identity = "line", "", _content_digest(line, content)
        if identity in self._digests:
            self.repeated[kind] += 1
            return False
        self._digests.add(identity)
        self.counts[kind] += 1
        if content is None:
            self.notices.append(f"{place} is not JSON; it was copied unchanged")
        elif isinstance(content, dict) and not is_workload and content.get("evaluation") is None:
            self.notices.append(f"{place} names a solution and has no evaluation; it was copied unchanged")
        elif is_workload and isinstance(content.get("workload"), dict) and "uuid" in content["workload"]:
            name = f"{content.get('definition')}/{content['workload']['uuid']}"
            self._is_in_conflict(_Record("workload", name, root, place, content))
        return True

    def _add_other(self, root: Path, path: str, kind: str) -> None:
        counted = "blobs" if kind == "blob" else "files"
        first, second = self._sources.get(path), root / path
        if first is None:
            self._copy(root, path, may_link=kind == "blob")
            self.counts[counted] += 1
        elif first.samefile(second) or filecmp.cmp(first, second, shallow=False):
            self.repeated[counted] += 1
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
