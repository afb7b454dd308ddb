"""Merging of data sets. No record is lost, and every choice is reported.

A file that only one set has, or that is equal in all, is copied byte for byte. Lines of traces and
workloads are written once each, whatever the order of their keys; added lines follow the existing ones.
Definitions and solutions are identified by their names, workloads by definition and uuid, blobs by
their paths: different contents under one of these in two sets are a conflict, and a merge with conflicts writes
nothing. Of two files of counts below ``traffic/`` with one name the later snapshot is copied; if neither is later, that
is a conflict too. Bad records, and several of one name in one set, are copied unchanged; the validation of the result
lists them.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import msgspec
from fib_schema import DataSetNotFound, FibError, Report, Severity, TargetNotEmpty, validate
from fib_schema.data_files import list_data_files
from fib_schema.files import copy_file, make_folders, open_regular, read_regular, staged, walk
from fib_schema.traffic import FOLDER as TRAFFIC
from fib_schema.traffic import MAX_FILE_BYTES

_RECORDS = {"definitions": "definition", "solutions": "solution"}
_LINES = ("workloads", "traces")
_BLOBS = "blob"
_KINDS = ("definitions", "solutions", "workloads", "traces", "blobs", "files")
_MAX_RECORD_BYTES = 64 << 20
"""The largest record and line that is read; that of data sets is the same."""
_SHOWN_CONFLICTS = 20
_SHOWN_FIELDS = 6


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
    copied: int
    """The number of files that were copied byte for byte."""
    notices: tuple[str, ...]
    """Warnings for the user."""
    problems: tuple[str, ...]
    """Files that could not be read, or not to their end, and were left out."""
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
    merged = _Merged()
    for root in roots:
        for path in _files(root, merged):
            merged.add(root, path)
        merged.add_unlisted(root)
    if merged.conflicts:
        raise MergeConflicts(tuple(merged.conflicts))
    _publish(merged, goal)
    return MergeReport(
        sources=tuple(map(str, roots)),
        target=str(goal),
        counts=_in_order(merged.counts),
        repeated=_in_order(merged.repeated),
        copied=sum(file.is_copy for file in merged.files.values()),
        notices=tuple(merged.notices),
        problems=tuple(merged.problems),
        validation=validate(goal),
    )


def _in_order(counts: Counter[str]) -> dict[str, int]:
    return {kind: counts[kind] for kind in _KINDS if counts[kind]}


@attrs.define
class _File:
    """A file of the result: a file of a source, or lines of several."""

    source: Path
    lines: list[tuple[Path, list[tuple[int, int]]]] = attrs.field(factory=list)
    """Byte ranges that are taken from each source; empty where the file is copied."""
    is_blob: bool = False

    @property
    def is_copy(self) -> bool:
        return not self.lines


@attrs.define
class _Merged:
    """The merged content of the sources."""

    files: dict[str, _File] = attrs.field(factory=dict)
    conflicts: list[Conflict] = attrs.field(factory=list)
    notices: list[str] = attrs.field(factory=list)
    problems: list[str] = attrs.field(factory=list)
    counts: Counter[str] = attrs.field(factory=Counter)
    repeated: Counter[str] = attrs.field(factory=Counter)
    _places: dict[tuple[str, str], dict[Path, str]] = attrs.field(factory=dict)
    """The first place in each set, by kind and name of records and workloads."""
    _records: set[tuple[str, str, bytes]] = attrs.field(factory=set)
    """Kinds, names and digests of definitions and solutions."""
    _lines: set[bytes] = attrs.field(factory=set)

    def add(self, root: Path, path: str) -> None:
        """Add a file of a source, given by its path below the root; one that cannot be read is left out."""
        try:
            open_regular(root / path, buffer_bytes=0).close()
            self._add(root, path)
        except OSError as error:
            self.leave_out(root / path, error)

    def leave_out(self, path: str | os.PathLike[str], error: OSError) -> None:
        """Report a file or folder that cannot be read."""
        self.problems.append(f"{os.fspath(path)} cannot be read: {error.strerror or error}; it was left out")

    def add_unlisted(self, root: Path) -> None:
        """Report what readers of data sets refuse to list, such as a folder in the place of a file."""
        suffixes = dict.fromkeys(_RECORDS, ".json") | dict.fromkeys(_LINES, ".jsonl")
        _, found = list_data_files(os.fspath(root), suffixes)
        named = "\n".join([*self.problems, *self.notices])
        errors = [problem for problem in found if problem.severity is Severity.ERROR]
        self.problems += [str(problem) for problem in errors if problem.source not in named]

    def _add(self, root: Path, path: str) -> None:
        folder = path.split("/", 1)[0]
        if folder in _RECORDS and path.endswith(".json"):
            self._add_record(root, path, _RECORDS[folder])
        elif folder in _LINES and path.endswith(".jsonl"):
            self._add_lines(root, path)
        else:
            self._add_other(root, path, is_blob=folder == _BLOBS)

    def _add_record(self, root: Path, path: str, kind: str) -> None:
        data = read_regular(root / path, _MAX_RECORD_BYTES)
        content = _parsed_json(data)
        name = content.get("name") if isinstance(content, dict) else None
        name = name if isinstance(name, str) else path  # no record has the name of a bad file
        place, digest = str(root / path), _content_digest(data, content)
        if (kind, name, digest) in self._records:
            self.repeated[f"{kind}s"] += 1
            return
        if (other := self._place_in_another_set(kind, name, root, place)) is not None:
            first = _parsed_json(read_regular(other, _MAX_RECORD_BYTES))
            self.conflicts.append(Conflict(kind, name, other, place, _describe_difference(first, content)))
            return
        self._records.add((kind, name, digest))
        if (existing := self.files.get(path)) is not None:
            held = f"{kind} {name!r} would overwrite another one"
            self.conflicts.append(Conflict("file", path, str(existing.source), place, f"what it holds: {held}"))
        else:
            self.files[path] = _File(root / path)
            self.counts[f"{kind}s"] += 1
            if content is None:
                self.notices.append(f"{place} is not JSON; it was copied unchanged")

    def _add_lines(self, root: Path, path: str) -> None:
        """Add the new lines of a file; a file of which all lines are new is copied."""
        source = root / path
        parts: list[tuple[int, int]] = []
        dropped = begin = 0
        with open_regular(source) as stream:
            for number, line in enumerate(self._readable_lines(stream, source), 1):
                end = begin + len(line)
                if self._is_new(line, f"{source}:{number}", root, path):
                    parts.append((begin, end))
                else:
                    dropped += 1
                begin = end
            dropped += begin < os.fstat(stream.fileno()).st_size
        mine = self.files.get(path)
        if mine is None:
            if parts or not dropped:
                self.files[path] = _File(source, [(source, parts)] if dropped else [])
        elif parts:
            if mine.is_copy:
                mine.lines.append((mine.source, [(0, mine.source.stat().st_size)]))
            mine.lines.append((source, parts))

    def _readable_lines(self, stream: BinaryIO, source: Path) -> Iterator[bytes]:
        """The lines before one that is too long or cannot be read, which is reported."""
        number = 1
        try:
            while len(line := stream.readline(_MAX_RECORD_BYTES + 1)) <= _MAX_RECORD_BYTES:
                if not line:
                    return
                yield line
                number += 1
            problem = f"is longer than {_MAX_RECORD_BYTES} bytes"
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
        self.problems.append(f"{source}:{number} {problem}; it was left out, and what follows it")

    def _is_new(self, line: bytes, place: str, root: Path, path: str) -> bool:
        """Whether a line is new; counts it, and checks workloads for conflicts."""
        text = line.strip()
        if not text:
            return path not in self.files
        content = _parsed_json(text)
        digest = _content_digest(text, content)
        is_workload = isinstance(content, dict) and content.get("evaluation") is content.get("solution") is None
        kind = "workloads" if is_workload else "traces"
        if digest in self._lines:
            self.repeated[kind] += 1
            return False
        self._lines.add(digest)
        self.counts[kind] += 1
        if content is None:
            self.notices.append(f"{place} is not JSON; it was copied unchanged")
        elif isinstance(content, dict) and not is_workload and content.get("evaluation") is None:
            self.notices.append(f"{place} names a solution and has no evaluation; it was copied unchanged")
        elif is_workload:
            self._check_workload(content, root, place)
        return True

    def _check_workload(self, content: dict[str, Any], root: Path, place: str) -> None:
        workload = content.get("workload")
        identity = workload.get("uuid") if isinstance(workload, dict) else None
        name = f"{content.get('definition')}/{identity}"
        if identity is None:
            return
        if (other := self._place_in_another_set("workload", name, root, place)) is not None:
            difference = _describe_difference(_line_at(other), content)
            self.conflicts.append(Conflict("workload", name, other, place, difference))

    def _place_in_another_set(self, kind: str, name: str, root: Path, place: str) -> str | None:
        """Note where a set has a record; returns where another set has one of that name.

        Several in one set are its own problem, which the validation reports.
        """
        places = self._places.setdefault((kind, name), {})
        places.setdefault(root, place)
        return next((other for others, other in places.items() if others != root), None)

    def _add_other(self, root: Path, path: str, *, is_blob: bool) -> None:
        mine = self.files.get(path)
        if mine is None:
            self.files[path] = _File(root / path, is_blob=is_blob)
            self.counts["blobs" if is_blob else "files"] += 1
        elif _same_bytes(mine.source, root / path):
            self.repeated["blobs" if is_blob else "files"] += 1
        elif is_blob:
            self.conflicts.append(Conflict("blob", path, str(mine.source), str(root / path), "its bytes"))
        elif path.startswith(f"{TRAFFIC}/"):
            self._add_counts(mine, root, path)
        else:
            self.notices.append(f"{path} differs: {mine.source} was copied, {root / path} was not")

    def _add_counts(self, mine: _File, root: Path, path: str) -> None:
        """Keep the later one of two files of counts, which hold the same calls."""
        later = _later_snapshot(mine.source, root / path)
        if later is None:
            difference = "its counts, and neither file continues the other"
            self.conflicts.append(Conflict("traffic", path, str(mine.source), str(root / path), difference))
            return
        mine.source = later
        self.notices.append(f"{path} differs: {later} was copied, which has the counts of the others and later ones")


# -- the disk ----------------------------------------------------------------------------------


def _check_places(roots: Sequence[Path], goal: Path) -> None:
    for root in roots:
        if not root.is_dir():
            raise DataSetNotFound(str(root))
        if goal.resolve().is_relative_to(root.resolve()):
            raise TargetNotEmpty(str(goal), f"lies inside the data set {str(root)!r}")
    if goal.exists() and (not goal.is_dir() or any(goal.iterdir())):
        raise TargetNotEmpty(str(goal), "is not empty" if goal.is_dir() else "is not a folder")


def _files(root: Path, merged: _Merged) -> Iterator[str]:
    """Every file below a root, in the order of paths; links that lead out of it are skipped and reported."""
    real = root.resolve()
    for entry in walk(root, enters=lambda folder: not folder.name.startswith("."), on_error=merged.leave_out):
        path = Path(entry.path)
        if entry.name.startswith(".") or entry.is_dir(follow_symlinks=False):
            continue
        if entry.is_symlink() and os.path.isdir(path):  # noqa: PTH112 never raises
            merged.notices.append(f"{path} is a link to a folder; it was left out")
        elif entry.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(real):
            merged.notices.append(f"{path} is a link that leads out of the data set; it was left out")
        else:
            yield path.relative_to(root).as_posix()


def _publish(merged: _Merged, goal: Path) -> None:
    """Write the result into a temporary folder and rename it when it is complete."""
    with staged(goal) as draft:
        draft.mkdir()
        for path, file in merged.files.items():
            _write(file, draft / path)


def _write(file: _File, target: Path) -> None:
    if file.is_copy:
        copy_file(file.source, target, may_link=file.is_blob)
        return
    make_folders(target.parent)
    is_torn = False
    with target.open("wb") as stream:
        for source, parts in file.lines:
            with open_regular(source) as original:
                for begin, end in parts:
                    original.seek(begin)
                    if not (data := original.read(end - begin)):
                        continue
                    stream.write(b"\n" + data if is_torn else data)
                    is_torn = not data.endswith(b"\n")


def _same_bytes(first: Path, second: Path) -> bool:
    return first.samefile(second) or filecmp.cmp(first, second, shallow=False)


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


def _line_at(place: str) -> Any:
    """The value of a line, given as ``FILE:LINE``."""
    path, _, number = place.rpartition(":")
    with Path(path).open("rb") as stream:
        return next((_parsed_json(line) for index, line in enumerate(stream, 1) if index == int(number)), None)


def _describe_difference(first: Any, second: Any) -> str:
    """The fields in which two JSON values differ."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return "everything"
    missing = object()
    names = [key for key in {**first, **second} if first.get(key, missing) != second.get(key, missing)]
    more = f" and {len(names) - _SHOWN_FIELDS} more" if len(names) > _SHOWN_FIELDS else ""
    return ", ".join(names[:_SHOWN_FIELDS]) + more


# -- counts of traffic -------------------------------------------------------------------------


class _SizeCounts(msgspec.Struct):
    axes: dict[str, int]
    calls: int
    layout: Any = None


class _DefinitionCounts(msgspec.Struct):
    calls: int
    sizes: list[_SizeCounts]


class _ProcessCounts(msgspec.Struct):
    definitions: dict[str, _DefinitionCounts]
    host: Any = None
    pid: Any = None

    def by_size(self) -> dict[tuple[str, bytes], int]:
        """The counts by definition and size; no size stands for all calls."""
        counts = {(name, b""): definition.calls for name, definition in self.definitions.items()}
        for name, definition in self.definitions.items():
            for size in definition.sizes:
                key = name, msgspec.json.encode([size.axes, size.layout], order="sorted")
                counts[key] = counts.get(key, 0) + size.calls
        return counts


def _later_snapshot(first: Path, second: Path) -> Path | None:
    """The file that continues the counts of the other; None if neither does, or one of them is damaged.

    A process that traces replaces its file with larger counts, so copies of a data set that were made at different
    times hold the same file with different counts. Readers sum files, so neither of two others may be left out.

    Raises:
        OSError: A file cannot be read.
    """
    try:
        one, other = (
            msgspec.json.decode(read_regular(path, MAX_FILE_BYTES), type=_ProcessCounts) for path in (first, second)
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if (one.host, one.pid) != (other.host, other.pid):
        return None
    counts, others = one.by_size(), other.by_size()
    for path, larger, smaller in ((first, counts, others), (second, others, counts)):
        if all(larger.get(key, -1) >= count for key, count in smaller.items()):
            return path
    return None
