"""Merging of data sets. No record is lost, and every choice is reported.

A file that only one set has, or that is equal in all, is copied byte for byte. Lines of traces and
workloads are written once each, whatever the order of their keys; added lines follow the existing ones.
Definitions and solutions are identified by their names, workloads by definition and uuid, blobs by
their paths: different contents under one of these are a conflict, and a merge with conflicts writes nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import msgspec
from fib_schema import DataSetNotFound, FibError, TargetNotEmpty
from fib_schema.files import copy_file, make_folders, staged
from fib_schema.folder_walk import walk
from fib_schema.regular_files import open_regular, read_regular

_RECORDS = {"definitions": "definition", "solutions": "solution"}
_LINES = ("workloads", "traces")
_BLOBS = "blob"
_KINDS = ("definitions", "solutions", "workloads", "traces", "blobs", "files")
_SHOWN_FIELDS = 6
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
    copied: int
    """The number of files that were copied byte for byte."""
    notices: tuple[str, ...]
    """Warnings for the user."""
    problems: tuple[str, ...] = ()
    """Files that could not be read, or not to their end, and were left out."""


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
    )


def _in_order(counts: Counter[str]) -> dict[str, int]:
    return {kind: counts[kind] for kind in _KINDS if counts[kind]}


@attrs.define
class _File:
    """A file of the result: a file of a source, or lines of several."""

    source: Path
    lines: list[tuple[Path, list[tuple[int, int]]]] = attrs.field(factory=list)
    """Of each source, the parts that are taken; empty where the file is copied."""
    is_blob: bool = False

    @property
    def is_copy(self) -> bool:
        return not self.lines


@attrs.frozen
class _Known:
    """The first occurrence of a record."""

    place: str
    digest: bytes


@attrs.define
class _Merged:
    """The merged content of the sources."""

    files: dict[str, _File] = attrs.field(factory=dict)
    conflicts: list[Conflict] = attrs.field(factory=list)
    notices: list[str] = attrs.field(factory=list)
    problems: list[str] = attrs.field(factory=list)
    counts: Counter[str] = attrs.field(factory=Counter)
    repeated: Counter[str] = attrs.field(factory=Counter)
    _known: dict[tuple[str, str], _Known] = attrs.field(factory=dict)
    """Records and workloads by kind and name."""
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
        content = _parsed(data)
        name = content.get("name") if isinstance(content, dict) else None
        name = name if isinstance(name, str) else Path(path).stem
        place, digest = str(root / path), _digest(data, content)
        known = self._known.get((kind, name))
        if known is not None:
            if known.digest == digest:
                self.repeated[f"{kind}s"] += 1
                return
            other = _parsed(read_regular(known.place, _MAX_RECORD_BYTES))
            self.conflicts.append(Conflict(kind, name, known.place, place, _difference(other, content)))
            return
        self._known[kind, name] = _Known(place, digest)
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
            for number, line in enumerate(iter(lambda: stream.readline(_MAX_RECORD_BYTES + 1), b""), 1):
                if len(line) > _MAX_RECORD_BYTES:
                    problem = f"is longer than {_MAX_RECORD_BYTES} bytes; it was left out, and what follows it"
                    self.problems.append(f"{source}:{number} {problem}")
                    dropped += 1
                    break
                end = begin + len(line)
                if self._is_new(line, f"{source}:{number}", path):
                    parts.append((begin, end))
                else:
                    dropped += 1
                begin = end
        mine = self.files.get(path)
        if mine is None:
            if parts or not dropped:
                self.files[path] = _File(source, [(source, parts)] if dropped else [])
        elif parts:
            if mine.is_copy:
                mine.lines.append((mine.source, [(0, mine.source.stat().st_size)]))
            mine.lines.append((source, parts))

    def _is_new(self, line: bytes, place: str, path: str) -> bool:
        """Whether a line is new; counts it, and checks workloads for conflicts."""
        text = line.strip()
        if not text:
            return path not in self.files
        content = _parsed(text)
        digest = _digest(text, content)
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
            self._check_workload(content, place, digest)
        return True

    def _check_workload(self, content: dict[str, Any], place: str, digest: bytes) -> None:
        workload = content.get("workload")
        identity = workload.get("uuid") if isinstance(workload, dict) else None
        name = f"{content.get('definition')}/{identity}"
        known = self._known.setdefault(("workload", name), _Known(place, digest))
        if identity is not None and known.digest != digest:
            self.conflicts.append(
                Conflict("workload", name, known.place, place, _difference(_line_at(known.place), content))
            )

    def _add_other(self, root: Path, path: str, *, is_blob: bool) -> None:
        mine = self.files.get(path)
        if mine is None:
            self.files[path] = _File(root / path, is_blob=is_blob)
            self.counts["blobs" if is_blob else "files"] += 1
        elif _same_bytes(mine.source, root / path):
            self.repeated["blobs" if is_blob else "files"] += 1
        elif is_blob:
            self.conflicts.append(Conflict("blob", path, str(mine.source), str(root / path), "its bytes"))
        else:
            self.notices.append(f"{path} differs: {mine.source} was copied, {root / path} was not")


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
    import filecmp

    return first.samefile(second) or filecmp.cmp(first, second, shallow=False)


# -- content -----------------------------------------------------------------------------------


def _parsed(data: bytes) -> Any:
    """The value of a JSON text, or None if it is invalid."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(data)
    return None


def _digest(data: bytes, content: Any) -> bytes:
    """A digest that does not depend on the order of keys; of the bytes if it is not JSON."""
    canonical = data
    if content is not None:
        with suppress(msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            canonical = msgspec.json.encode(content, order="sorted")
    return hashlib.blake2b(canonical, digest_size=16).digest()


def _line_at(place: str) -> Any:
    path, _, number = place.rpartition(":")
    with Path(path).open("rb") as stream:
        return next((_parsed(line) for index, line in enumerate(stream, 1) if index == int(number)), None)


def _difference(first: Any, second: Any) -> str:
    """The paths of fields in which two JSON values differ."""
    try:
        paths = list(_differing(first, second, ""))
    except RecursionError:
        return "values that nest too deep to compare"
    more = f" and {len(paths) - _SHOWN_FIELDS} more fields" if len(paths) > _SHOWN_FIELDS else ""
    return ", ".join(paths[:_SHOWN_FIELDS]) + more


def _differing(first: Any, second: Any, path: str) -> Iterator[str]:
    if isinstance(first, dict) and isinstance(second, dict):
        for key in dict.fromkeys([*first, *second]):
            if key not in first or key not in second:
                yield f"{path}.{key}".lstrip(".")
            else:
                yield from _differing(first[key], second[key], f"{path}.{key}")
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from _differing(one, other, f"{path}[{index}]")
    elif type(first) is not type(second) or first != second:
        yield path.lstrip(".") or "everything"
