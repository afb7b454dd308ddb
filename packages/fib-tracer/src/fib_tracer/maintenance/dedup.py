"""Deduplication of workloads, also while an engine traces into the data set.

Two workloads are equal if their axes, their scalars and the bytes of their tensors are, whatever their uuids and files.
Lines are removed first, under the lock that appending takes; then blobs that nothing names any more. A deduplication
that is interrupted leaves orphaned blobs, and nothing else is wrong.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import attrs
from fib_schema import (
    BlobError,
    Definition,
    FibError,
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
from fib_schema.data_files import list_data_files, read_lines
from fib_schema.locks import lock_folders_of
from fib_schema.strides import LAYOUT, workload_strides
from fib_schema.traffic import layout_key

from ..data_problems import definition_errors
from ..policies.calls import RANDOM
from ..storage.records import workload_digest
from .survey import blob_files, blob_folder, blob_problems, blobs_in, blobs_of

_LOCK_NAME = ".dedup.lock"
Uuids: TypeAlias = "set[tuple[str, str]]"
"""Names of definitions, and uuids of their workloads."""


@attrs.frozen
class Line:
    """A workload's line in a file."""

    file: Path
    index: int
    """From 0 on."""
    text: bytes
    trace: Trace

    @property
    def uuid(self) -> str:
        """The workload's."""
        return self.trace.workload.uuid

    def __str__(self) -> str:
        return f"{self.file}:{self.index + 1}"


@attrs.frozen
class Removal:
    """A workload that is equal to one that is kept."""

    definition: str
    uuid: str
    equal_to: str
    """The uuid of the one that is kept."""
    source: str
    """File and line."""


@attrs.define
class DedupReport:
    """Workloads that were removed, or would be."""

    workloads: int = 0
    """Number of compared workloads."""
    removals: list[Removal] = attrs.field(factory=list)
    blobs: list[str] = attrs.field(factory=list)
    """Files of tensors that were removed, relative to the root."""
    blob_bytes: int = 0
    problems: list[Problem] = attrs.field(factory=list)
    """Records that could not be compared, and were left unchanged; bad blobs and definitions."""

    def to_plain(self) -> dict[str, Any]:
        """As plain objects, for JSON."""
        problems = [{"source": problem.source, "message": problem.message} for problem in self.problems]
        return {**attrs.asdict(self), "problems": problems}


def dedup(
    dataset: str | os.PathLike[str] | None, *, is_dry: bool = False, removes_orphans: bool = False
) -> DedupReport:
    """Remove all but the first of equal workloads; workloads that traces refer to are kept.

    An engine may trace into the set at the same time. Do not run a benchmark: it may record a trace of a workload that
    is being removed.

    Args:
        dataset: The data set's root; None means ``FIB_DATASET_PATH`` or the default.
        is_dry: Whether nothing is changed, and the report says what would be removed.
        removes_orphans: Whether blobs are removed that nothing names, such as those of a process that was killed. Not
            safe while `TraceSet.add_workload_blob_tensor` adds blobs.

    Raises:
        DataSetNotFound: There is no such data set.
        OSError: A file could not be rewritten.
    """
    trace_set = TraceSet.from_path(dataset)
    report = DedupReport()
    if not trace_set.workloads_path.is_dir():
        report.problems += definition_errors(trace_set)
        return report
    with nullcontext() if is_dry else _exclusive(trace_set.workloads_path):
        lines = list(_lines(trace_set, report.problems))
        report.workloads = len(lines)
        bad_blobs = list(blob_problems(trace_set, ((str(line), line.trace) for line in lines)))
        removed = list(_removed(trace_set, lines, report))
        if not is_dry:
            _rewrite(removed, report.problems)
        _remove_blobs(trace_set, lines, removed, report, is_dry=is_dry, removes_orphans=removes_orphans)
    known = {problem.source for problem in report.problems}
    others = [*bad_blobs, *definition_errors(trace_set)]
    report.problems += [problem for problem in others if problem.source not in known]
    return report


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Lock out other deduplications: two could each remove the workload that the other keeps."""
    unlock = lock_folders_of([os.fspath(folder / "any")], _LOCK_NAME)
    try:
        yield
    finally:
        unlock()


# -- lines -------------------------------------------------------------------------------------------


def _lines(trace_set: TraceSet, problems: list[Problem]) -> Iterator[Line]:
    """All workloads below ``workloads/``, in the order of files."""
    files, found = list_data_files(os.fspath(trace_set.root or ""), {"workloads": ".jsonl"})
    problems += found
    for file in files["workloads"]:
        for number, text in read_lines(file, problems):
            if (trace := _parsed(f"{file.name}:{number}", text, trace_set, problems)) is not None:
                yield Line(Path(file.path), number - 1, text.removesuffix(b"\n"), trace)


def _parsed(source: str, text: bytes, trace_set: TraceSet, problems: list[Problem]) -> Trace | None:
    try:
        trace = parse_json(text, Trace, source=source)
    except InvalidRecord:
        problems.append(Problem(source, "$", "is not a valid workload; it was left unchanged"))
        return None
    if trace.evaluation is not None or trace.definition not in trace_set.definitions:
        problems.append(Problem(source, "$", "is not a workload of a definition of this set; it was left unchanged"))
        return None
    return trace


def _removed(trace_set: TraceSet, lines: Sequence[Line], report: DedupReport) -> Iterator[Line]:
    traced = {(name, trace.workload.uuid) for name in trace_set.traces for trace in trace_set.traces[name]}
    for group in _equal_groups(trace_set, lines, report.problems):
        kept = _kept(group, traced)
        for line in group:
            if line not in kept:
                equal = next((other for other in kept if other.uuid == line.uuid), kept[0])
                report.removals.append(Removal(line.trace.definition, line.uuid, equal.uuid, str(line)))
                yield line


def _kept(group: Sequence[Line], traced: Uuids) -> list[Line]:
    """The first line of each uuid that traces refer to; if there is none, the first line."""
    first = {line.uuid: line for line in reversed(group)}
    kept = [line for line in group if (line.trace.definition, line.uuid) in traced and first[line.uuid] is line]
    return kept or [group[0]]


def _equal_groups(trace_set: TraceSet, lines: Iterable[Line], problems: list[Problem]) -> Iterator[list[Line]]:
    """Lines of equal workloads, two or more; tensors are read only if all else is equal."""
    candidates: dict[Any, list[Line]] = {}
    for line in lines:
        definition = trace_set.definitions[line.trace.definition]
        key = line.trace.definition, _without_tensors(definition, line.trace.workload)
        candidates.setdefault(key, []).append(line)
    for similar in candidates.values():
        groups: dict[str, list[Line]] = {}
        for line in similar if len(similar) > 1 else ():
            try:
                groups.setdefault(_digest(trace_set, line.trace), []).append(line)
            except BlobError as error:
                problems.append(Problem(str(line), "$", f"{error}; it was left unchanged"))
        yield from (group for group in groups.values() if len(group) > 1)


def _sizes_of(definition: Definition, workload: Workload) -> dict[str, int]:
    """The sizes of a workload's axes without constants, which a workload may state too."""
    constants = definition.const_axes
    return {axis: size for axis, size in workload.axes.items() if constants.get(axis) != size}


def _layout_of(definition: Definition, workload: Workload) -> Any:
    """The normalized layout of a workload; as it is written if it is invalid."""
    try:
        return layout_key(workload_strides(definition, workload))
    except FibError:
        return repr(workload.extra and workload.extra.get(LAYOUT))


def _without_tensors(definition: Definition, workload: Workload) -> Any:
    inputs = {
        name: (type(i.value).__name__, repr(i.value)) if isinstance(i, ScalarInput) else (type(i).__name__, "")
        for name, i in workload.inputs.items()
    }
    sizes = _sizes_of(definition, workload)
    return frozenset(sizes.items()), frozenset(inputs.items()), _layout_of(definition, workload)


def _digest(trace_set: TraceSet, trace: Trace) -> str:
    inputs: dict[str, Any] = {}
    for name, source in trace.workload.inputs.items():
        if isinstance(source, SafetensorsInput):
            inputs[name] = load_tensor(trace_set.root, source.path, source.tensor_key)
        else:
            inputs[name] = source.value if isinstance(source, ScalarInput) else RANDOM
    sizes = _sizes_of(trace_set.definitions[trace.definition], trace.workload)
    return workload_digest(trace.definition, sizes, inputs)


def _rewrite(removed: Iterable[Line], problems: list[Problem]) -> None:
    files: dict[Path, dict[int, bytes]] = {}
    for line in removed:
        files.setdefault(line.file, {})[line.index] = line.text
    for file, gone in files.items():
        rewrite_jsonl_file(file, functools.partial(_remaining, file, gone, problems))


def _remaining(file: Path, gone: Mapping[int, bytes], problems: list[Problem], texts: Sequence[bytes]) -> list[bytes]:
    """The lines that remain. Appending moves no lines; if one has moved, another program has edited the file."""
    moved = [index for index, text in gone.items() if index >= len(texts) or texts[index] != text]
    if moved:
        message = "was edited meanwhile and left unchanged; run this again"
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
    """Remove blobs that only removed lines named, and orphans."""
    files = blob_files(trace_set)
    gone = {id(line) for line in removed}
    current = TraceSet.from_path(trace_set.root)  # with what was appended meanwhile
    named = {*blobs_of(line.trace for line in lines if id(line) not in gone), *blobs_in(current.traces)}
    named |= set() if is_dry else set(blobs_in(current.workloads))
    by_lines = {path: line.trace.definition for line in removed for path in blobs_of([line.trace])}
    owners = {path: name for path, name in by_lines.items() if path in files and path not in named}
    if removes_orphans:
        owners |= _orphans(trace_set, files, {*named, *owners})
    by_definition: dict[str, list[str]] = {}
    for path, name in sorted(owners.items()):
        by_definition.setdefault(name, []).append(path)
    log = current.workload_log()
    for name, paths in by_definition.items():
        done = paths if is_dry else log.remove_tensors(trace_set.get_definition(name), paths)
        report.blobs += done
        report.blob_bytes += sum(files[path] for path in done)


def _orphans(trace_set: TraceSet, files: Iterable[str], named: set[str]) -> dict[str, str]:
    """Blobs that nothing names, in folders of definitions, with the definition whose lock protects them."""
    folders = {blob_folder(definition): name for name, definition in trace_set.definitions.items()}
    found = {path: folders.get(path.rpartition("/")[0]) for path in files if path not in named}
    return {path: name for path, name in found.items() if name is not None}
