"""Removes workloads that are equal to others, from a data set that somebody may be collecting into.

Two workloads are equal if their axes, their scalars and the bytes of their tensors are, whatever their uuids and files.
Lines go first, under the lock that those take who append; blobs that nothing names any more go afterwards. If it is
stopped in between, blobs are left over, and nothing else is wrong.
"""

from __future__ import annotations

import fcntl
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import attrs
from fib_schema import (
    BlobError,
    InvalidRecord,
    Problem,
    SafetensorsInput,
    ScalarInput,
    Trace,
    TraceSet,
    Workload,
    parse_json,
    rewrite_jsonl_file,
)
from fib_schema.blobs import load_tensor

from ..policies.calls import RANDOM
from ..storing.content import digest_of
from .survey import blob_files, blob_folder, blobs_in, blobs_of

Uuids: TypeAlias = "set[tuple[str, str]]"
"""Names of definitions, and uuids of their workloads."""


@attrs.frozen
class Line:
    """A workload, and where it stands."""

    file: Path
    index: int
    """Of the line in its file, from 0 on."""
    text: bytes
    trace: Trace

    @property
    def uuid(self) -> str:
        """The workload's."""
        return self.trace.workload.uuid


@attrs.frozen
class Removal:
    """A workload that is equal to one that stays."""

    definition: str
    uuid: str
    equal_to: str
    """The uuid of the one that stays."""
    source: str
    """File and line."""


@attrs.define
class DedupReport:
    """What was removed, or would be."""

    workloads: int = 0
    """How many were looked at."""
    removals: list[Removal] = attrs.field(factory=list)
    blobs: list[str] = attrs.field(factory=list)
    """Files of tensors that were removed, relative to the root."""
    blob_bytes: int = 0
    problems: list[Problem] = attrs.field(factory=list)
    """What could not be compared, and was left as it is."""

    def to_plain(self) -> dict[str, Any]:
        """As plain objects, for JSON."""
        problems = [{"source": problem.source, "message": problem.message} for problem in self.problems]
        return {**attrs.asdict(self), "problems": problems}


def dedup(
    dataset: str | os.PathLike[str] | None, *, is_dry: bool = False, removes_orphans: bool = False
) -> DedupReport:
    """Reduce equal workloads to the first one; those that traces refer to stay in any case.

    Tracing into the set may go on meanwhile. A benchmark should not: it may be about to record a trace of a workload
    that is being removed.

    Args:
        dataset: The data set's root; None means ``FIB_DATASET_PATH`` or the default.
        is_dry: Whether nothing is changed, and only said what would be.
        removes_orphans: Whether blobs go that nothing named before, such as those of a run that was stopped. Not while
            somebody adds blobs by `TraceSet.add_workload_blob_tensor`.

    Raises:
        DataSetNotFound: There is no such data set.
        OSError: Something could not be rewritten.
    """
    trace_set = TraceSet.from_path(dataset)
    report = DedupReport()
    if not trace_set.workloads_path.is_dir():
        return report
    with _alone(trace_set.workloads_path):
        lines = list(_lines(trace_set, report.problems))
        report.workloads = len(lines)
        removed = list(_removed(trace_set, lines, report))
        if not is_dry:
            _rewrite(removed, report.problems)
        _remove_blobs(trace_set, lines, removed, report, is_dry=is_dry, removes_orphans=removes_orphans)
    return report


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two who thin a set at once could each remove what the other keeps."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# -- lines -------------------------------------------------------------------------------------------


def _lines(trace_set: TraceSet, problems: list[Problem]) -> Iterator[Line]:
    """All workloads below ``workloads/``, in the order of files."""
    root = os.path.realpath(trace_set.workloads_path.parent) + os.sep
    for file in sorted(trace_set.workloads_path.rglob("*.jsonl")):
        if any(part.startswith(".") for part in file.relative_to(trace_set.workloads_path).parts):
            continue
        if not os.path.realpath(file).startswith(root) or not file.is_file():
            problems.append(Problem(str(file), "$", "is no file of the data set, and was left as it is"))
            continue
        for index, text in enumerate(file.read_bytes().split(b"\n")):
            if (trace := _parsed(file, index, text, trace_set, problems)) is not None:
                yield Line(file, index, text, trace)


def _parsed(file: Path, index: int, text: bytes, trace_set: TraceSet, problems: list[Problem]) -> Trace | None:
    if not text.strip():
        return None
    place = f"{file}:{index + 1}"
    try:
        trace = parse_json(text, Trace, source=place)
    except InvalidRecord:
        problems.append(Problem(place, "$", "is no workload, and was left as it is"))
        return None
    if trace.evaluation is not None or trace.definition not in trace_set.definitions:
        problems.append(Problem(place, "$", "is no workload of a definition of this set, and was left as it is"))
        return None
    return trace


def _removed(trace_set: TraceSet, lines: Sequence[Line], report: DedupReport) -> Iterator[Line]:
    referred = {(name, trace.workload.uuid) for name in trace_set.traces for trace in trace_set.traces[name]}
    for group in _equal_groups(trace_set, lines, report.problems):
        staying = _staying(group, referred)
        for line in group:
            if line not in staying:
                equal = next((kept for kept in staying if kept.uuid == line.uuid), staying[0])
                source = f"{line.file}:{line.index + 1}"
                report.removals.append(Removal(line.trace.definition, line.uuid, equal.uuid, source))
                yield line


def _staying(group: Sequence[Line], referred: Uuids) -> list[Line]:
    """The first line of each uuid that traces refer to; if there is none, the first line."""
    first = {line.uuid: line for line in reversed(group)}
    wanted = [line for line in group if (line.trace.definition, line.uuid) in referred and first[line.uuid] is line]
    return wanted or [group[0]]


def _equal_groups(trace_set: TraceSet, lines: Iterable[Line], problems: list[Problem]) -> Iterator[list[Line]]:
    """Lines of equal workloads, two or more; tensors are read only where all else is equal."""
    alike: dict[Any, list[Line]] = {}
    for line in lines:
        alike.setdefault((line.trace.definition, _without_tensors(line.trace.workload)), []).append(line)
    for candidates in alike.values():
        groups: dict[str, list[Line]] = {}
        for line in candidates if len(candidates) > 1 else ():
            try:
                groups.setdefault(_digest(trace_set, line.trace), []).append(line)
            except BlobError as error:
                problems.append(Problem(f"{line.file}:{line.index + 1}", "$", f"{error}; it was left as it is"))
        yield from (group for group in groups.values() if len(group) > 1)


def _without_tensors(workload: Workload) -> Any:
    inputs = {name: _known(source) for name, source in workload.inputs.items()}
    return frozenset(workload.axes.items()), frozenset(inputs.items())


def _known(source: object) -> tuple[str, str]:
    if isinstance(source, ScalarInput):
        return type(source.value).__name__, repr(source.value)
    return type(source).__name__, ""


def _digest(trace_set: TraceSet, trace: Trace) -> str:
    inputs: dict[str, Any] = {}
    for name, source in trace.workload.inputs.items():
        if isinstance(source, SafetensorsInput):
            inputs[name] = load_tensor(trace_set.root, source.path, source.tensor_key)
        else:
            inputs[name] = source.value if isinstance(source, ScalarInput) else RANDOM
    return digest_of(trace.definition, trace.workload.axes, inputs)


def _rewrite(removed: Iterable[Line], problems: list[Problem]) -> None:
    files: dict[Path, dict[int, bytes]] = {}
    for line in removed:
        files.setdefault(line.file, {})[line.index] = line.text
    for file, gone in files.items():
        rewrite_jsonl_file(file, functools.partial(_without, file, gone, problems))


def _without(file: Path, gone: Mapping[int, bytes], problems: list[Problem], texts: Sequence[bytes]) -> list[bytes]:
    """The lines that stay; appending moves none, so one that is not where it was is somebody else's doing."""
    moved = [index for index, text in gone.items() if index >= len(texts) or texts[index] != text]
    if moved:
        message = "was edited meanwhile and left as it is; run this again"
        problems.append(Problem(str(file), "$", message, code="edited"))
        return list(texts)
    return [text for index, text in enumerate(texts) if index not in gone]


# -- blobs -------------------------------------------------------------------------------------------


def _remove_blobs(
    trace_set: TraceSet,
    lines: Sequence[Line],
    removed: Sequence[Line],
    report: DedupReport,
    *,
    is_dry: bool,
    removes_orphans: bool,
) -> None:
    """Remove what only removed lines named, or nobody at all."""
    files = blob_files(trace_set)
    gone = {id(line) for line in removed}
    current = TraceSet.from_path(trace_set.root)  # with what was appended meanwhile
    named = {*blobs_of(line.trace for line in lines if id(line) not in gone), *blobs_in(current.traces)}
    named |= set() if is_dry else set(blobs_in(current.workloads))
    by_lines = {path: line.trace.definition for line in removed for path in blobs_of([line.trace])}
    owners = {path: name for path, name in by_lines.items() if path in files and path not in named}
    if removes_orphans:
        owners |= _orphans(trace_set, files, {*named, *owners})
    for definition, paths in _by_definition(owners).items():
        log = current.workload_log()
        done = paths if is_dry else log.remove_tensors(trace_set.get_definition(definition), paths)
        report.blobs += done
        report.blob_bytes += sum(files[path] for path in done)


def _orphans(trace_set: TraceSet, files: Iterable[str], named: set[str]) -> dict[str, str]:
    """Blobs that nothing names, in folders of definitions, with the definition that is locked meanwhile."""
    folders = {blob_folder(definition): name for name, definition in trace_set.definitions.items()}
    found = {path: folders.get(path.rpartition("/")[0]) for path in files if path not in named}
    return {path: name for path, name in found.items() if name is not None}


def _by_definition(owners: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for path, name in sorted(owners.items()):
        groups.setdefault(name, []).append(path)
    return groups
