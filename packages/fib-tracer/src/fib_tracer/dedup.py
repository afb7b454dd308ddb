"""Deduplication of workloads, also while an engine traces into the data set.

Two workloads are equal if their axes, their scalars and the bytes of their tensors are, whatever their uuids and files.
Lines are removed first, under the lock that appending takes; then blobs that nothing names any more. A deduplication
that is interrupted leaves orphaned blobs, and nothing else is wrong.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

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
from fib_schema.appending import lock_folders_of
from fib_schema.blobs import load_tensor
from fib_schema.command import plain_problems
from fib_schema.data_files import list_data_files
from fib_schema.problems import Findings
from fib_schema.reader import read_lines
from fib_schema.strides import LAYOUT, workload_strides
from fib_schema.traffic import layout_key

from .policies import RANDOM
from .records import workload_digest
from .runtime import definition_errors
from .survey import blob_files, blob_folder, blob_problems, blobs_in, blobs_of


@attrs.frozen(eq=False)
class _Line:
    """A workload's line in a file."""

    file: Path
    number: int
    text: bytes
    trace: Trace

    @property
    def key(self) -> tuple[str, str]:
        """The names of the definition and of the workload."""
        return self.trace.definition, self.trace.workload.uuid

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


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
        return {**attrs.asdict(self), "problems": plain_problems(self.problems)}


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
    bad_blobs: list[Problem] = []
    if trace_set.workloads_path.is_dir():
        with nullcontext() if is_dry else _exclusive(trace_set.workloads_path):
            lines = list(_lines(trace_set, report.problems))
            report.workloads = len(lines)
            bad_blobs += blob_problems(trace_set, ((str(line), line.trace) for line in lines))
            removed = list(_removed(trace_set, lines, report))
            if not is_dry:
                _rewrite(removed)
            _remove_blobs(trace_set, lines, removed, report, is_dry=is_dry, removes_orphans=removes_orphans)
    known = {problem.source for problem in report.problems}
    others = [*bad_blobs, *definition_errors(trace_set)]
    report.problems += [problem for problem in others if problem.source not in known]
    return report


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Lock out other deduplications: two could each remove the workload that the other keeps."""
    unlock = lock_folders_of([os.fspath(folder / "any")], ".dedup.lock")
    try:
        yield
    finally:
        unlock()


def _lines(trace_set: TraceSet, problems: list[Problem]) -> Iterator[_Line]:
    """All workloads below ``workloads/``, in the order of files."""
    files, found = list_data_files(os.fspath(trace_set.root or ""), {"workloads": ".jsonl"})
    problems += found
    for file in files["workloads"]:
        findings = Findings()
        for number, text in read_lines(file, findings):
            source = f"{file.name}:{number}"
            try:
                trace = parse_json(text, Trace, source=source)
            except InvalidRecord:
                problems.append(Problem(source, "$", "is not a valid workload; it was left unchanged"))
                continue
            if trace.evaluation is not None or trace.definition not in trace_set.definitions:
                message = "is not a workload of a definition of this set; it was left unchanged"
                problems.append(Problem(source, "$", message))
                continue
            yield _Line(Path(file.path), number, text.removesuffix(b"\n"), trace)


def _removed(trace_set: TraceSet, lines: Sequence[_Line], report: DedupReport) -> Iterator[_Line]:
    """The lines to remove: of equal ones, all but the first of each uuid that traces refer to, or but the first."""
    traced = {(name, trace.workload.uuid) for name in trace_set.traces for trace in trace_set.traces[name]}
    for group in _equal_groups(trace_set, lines, report.problems):
        first = {line.key: line for line in reversed(group)}
        kept = {key: line for key, line in first.items() if key in traced} or {group[0].key: group[0]}
        for line in group:
            if kept.get(line.key) is not line:
                equal = kept.get(line.key) or next(other for other in group if other.key in kept)
                report.removals.append(Removal(*line.key, equal.key[1], str(line)))
                yield line


def _equal_groups(trace_set: TraceSet, lines: Iterable[_Line], problems: list[Problem]) -> Iterator[list[_Line]]:
    """Lines of equal workloads, two or more; tensors are read only if all else is equal."""
    candidates: dict[Any, list[_Line]] = {}
    for line in lines:
        definition = trace_set.definitions[line.trace.definition]
        candidates.setdefault(_without_tensors(definition, line.trace.workload), []).append(line)
    for similar in candidates.values():
        groups: dict[str, list[_Line]] = {}
        for line in similar if len(similar) > 1 else ():
            try:
                groups.setdefault(_digest(trace_set, line.trace), []).append(line)
            except BlobError as error:
                problems.append(Problem(str(line), "$", f"{error}; it was left unchanged"))
        yield from (group for group in groups.values() if len(group) > 1)


def _without_tensors(definition: Definition, workload: Workload) -> Any:
    """What two equal workloads share beside the bytes of their tensors; constant axes, which both may state, do not."""
    inputs = {
        name: (type(i.value).__name__, repr(i.value)) if isinstance(i, ScalarInput) else (type(i).__name__, "")
        for name, i in workload.inputs.items()
    }
    try:
        layout: Any = layout_key(workload_strides(definition, workload))
    except FibError:
        layout = repr(workload.extra and workload.extra.get(LAYOUT))
    sizes = workload.axes.items() - definition.const_axes.items()
    return definition.name, frozenset(sizes), frozenset(inputs.items()), layout


def _digest(trace_set: TraceSet, trace: Trace) -> str:
    inputs: dict[str, Any] = {}
    for name, source in trace.workload.inputs.items():
        if isinstance(source, SafetensorsInput):
            inputs[name] = load_tensor(trace_set.root, source.path, source.tensor_key)
        else:
            inputs[name] = source.value if isinstance(source, ScalarInput) else RANDOM
    return workload_digest(trace.definition, {}, inputs)


def _rewrite(removed: Iterable[_Line]) -> None:
    files: dict[Path, Counter[bytes]] = {}
    for line in removed:
        files.setdefault(line.file, Counter())[line.text] += 1
    for file, gone in files.items():
        rewrite_jsonl_file(file, functools.partial(_remaining, gone))


def _remaining(gone: Counter[bytes], texts: Sequence[bytes]) -> list[bytes]:
    """The lines without the last ones of these texts: of lines that are repeated, the first one stays."""
    remaining = []
    for text in reversed(texts):
        if gone[text] > 0:
            gone[text] -= 1
        else:
            remaining.append(text)
    return remaining[::-1]


def _remove_blobs(
    trace_set: TraceSet,
    lines: Sequence[_Line],
    removed: Sequence[_Line],
    report: DedupReport,
    *,
    is_dry: bool,
    removes_orphans: bool,
) -> None:
    """Remove blobs that only removed lines named, and orphans in folders of definitions, whose locks protect them."""
    files = blob_files(trace_set)
    gone = set(removed)
    current = TraceSet.from_path(trace_set.root)  # with what was appended meanwhile
    named = {*blobs_of(line.trace for line in lines if line not in gone), *blobs_in(current.traces)}
    named |= set() if is_dry else set(blobs_in(current.workloads))
    by_removed = set(blobs_of(line.trace for line in removed))
    definitions = trace_set.definitions.values() if removes_orphans else ()
    owners = {blob_folder(definition): definition.name for definition in definitions}
    owners |= {path: line.trace.definition for line in removed for path in blobs_of([line.trace])}
    by_definition: dict[str, list[str]] = {}
    for path in sorted(files.keys() - named):
        owner = owners.get(path) or owners.get(path.rpartition("/")[0])
        if owner is not None and (path in by_removed or removes_orphans):
            by_definition.setdefault(owner, []).append(path)
    log = current.workload_log()
    for name, paths in by_definition.items():
        done = paths if is_dry else log.remove_tensors(trace_set.get_definition(name), paths)
        report.blobs += done
        report.blob_bytes += sum(files[path] for path in done)
