"""What a data set's workloads cover: sizes, inputs, blobs, and what is missing or left over."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from fib_schema import Definition, SafetensorsInput, Trace, TraceSet, Workload
from fib_schema.files import is_temporary

_LONGEST_WRITE_SECONDS = 3600.0
_MOST_SINGLE = 8
"""Up to so many different sizes have a bar each; more share bars by powers of two."""


@attrs.frozen
class Bar:
    """How many workloads have a size."""

    least: int
    most: int
    workloads: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}-{self.most}"


@attrs.frozen
class DefinitionSurvey:
    """The workloads of one definition."""

    name: str
    op_type: str
    workloads: int
    distinct_axes: int
    """Different combinations of the variable axes' sizes."""
    axes: Mapping[str, Sequence[Bar]]
    inputs: Mapping[str, Mapping[str, int]]
    """By input, how many workloads give it as ``random``, ``scalar`` or ``safetensors``."""
    blobs: int
    blob_bytes: int


@attrs.frozen
class Blob:
    """A file of tensors."""

    path: str
    """Relative to the root."""
    size_bytes: int


@attrs.frozen
class MissingBlob:
    """A file of tensors that is named and not there."""

    path: str
    definition: str
    workload: str


@attrs.frozen
class Survey:
    """What a data set's workloads cover."""

    definitions: Sequence[DefinitionSurvey]
    orphans: Sequence[Blob]
    """Files that neither a workload nor a trace names."""
    missing: Sequence[MissingBlob]
    blobs: int
    """Files of tensors, orphans included."""
    blob_bytes: int
    unknown: Sequence[str]
    """Names that workloads bear of definitions that the set lacks."""

    @property
    def without_workloads(self) -> list[str]:
        """The definitions that nothing was collected for."""
        return [definition.name for definition in self.definitions if not definition.workloads]

    def to_plain(self) -> dict[str, Any]:
        """As plain objects, for JSON."""
        return {**attrs.asdict(self), "without_workloads": self.without_workloads}


def survey(trace_set: TraceSet, names: Iterable[str] | None = None) -> Survey:
    """Look at the workloads of a data set.

    Args:
        trace_set: With a root.
        names: Definitions to look at; None means all. Blobs count for the folders of these.

    Raises:
        UnknownName: There is no such definition.
        NoRoot: The data set is in memory only.
    """
    chosen = list(trace_set.definitions) if names is None else list(dict.fromkeys(names))
    definitions = [trace_set.get_definition(name) for name in sorted(chosen)]
    files = blob_files(trace_set)
    groups = {d.name: trace_set.workloads.get(d.name, []) for d in definitions}
    kept = files if names is None else _below(files, definitions)
    named = {*blobs_in(trace_set.workloads), *blobs_in(trace_set.traces)}
    missing = {
        path: MissingBlob(path, name, trace.workload.uuid)
        for name, group in groups.items()
        for trace in group
        for path in blobs_of([trace])
        if path not in files
    }
    return Survey(
        [_of_definition(definition, groups[definition.name], files) for definition in definitions],
        [Blob(path, size) for path, size in kept.items() if path not in named],
        list(missing.values()),
        len(kept),
        sum(kept.values()),
        [] if names is not None else sorted(set(trace_set.workloads) - set(trace_set.definitions)),
    )


def blobs_of(traces: Iterable[Trace]) -> Iterator[str]:
    """The blobs that traces or workloads name, relative to the root and in the normal form."""
    for trace in traces:
        for source in trace.workload.inputs.values():
            if isinstance(source, SafetensorsInput):
                yield source.path.removeprefix("./")


def blob_files(trace_set: TraceSet) -> dict[str, int]:
    """The files of workloads' tensors with their sizes in bytes; paths are relative to the root.

    Temporary ones are among them when whoever wrote them must have been killed.
    """
    root = os.fspath(trace_set.blob_workloads_path.parent.parent)
    found: dict[str, int] = {}
    for folder, folders, names in os.walk(trace_set.blob_workloads_path):
        folders.sort()
        for name in sorted(names):
            file = Path(folder, name)
            if file.is_file() and (not name.startswith(".") or _is_left_over(file)):
                found[file.relative_to(root).as_posix()] = file.stat().st_size
    return found


def _is_left_over(file: Path) -> bool:
    """Whether a hidden file is a temporary one that its writer will not come back to."""
    return is_temporary(file.name) and time.time() - file.lstat().st_mtime > _LONGEST_WRITE_SECONDS


def blobs_in(groups: Mapping[str, Sequence[Trace]]) -> Iterator[str]:
    """The same of traces by definition."""
    for name in groups:
        yield from blobs_of(groups[name])


def blob_folder(definition: Definition) -> str:
    """Where the tensors of a definition's workloads lie, relative to the root."""
    return f"blob/workloads/{definition.op_type}/{definition.name}"


def _below(files: Mapping[str, int], definitions: Iterable[Definition]) -> dict[str, int]:
    folders = tuple(f"{blob_folder(definition)}/" for definition in definitions)
    return {path: size for path, size in files.items() if path.startswith(folders)}


def _of_definition(definition: Definition, traces: Sequence[Trace], files: Mapping[str, int]) -> DefinitionSurvey:
    workloads = [trace.workload for trace in traces]
    axes = {axis: bars([w.axes[axis] for w in workloads if axis in w.axes]) for axis in definition.var_axes}
    blobs = {path for path in blobs_of(traces) if path in files}
    return DefinitionSurvey(
        definition.name,
        definition.op_type,
        len(workloads),
        len({tuple(sorted(workload.axes.items())) for workload in workloads}),
        axes if workloads else {},
        _kinds(definition, workloads),
        len(blobs),
        sum(files[path] for path in blobs),
    )


def _kinds(definition: Definition, workloads: Sequence[Workload]) -> dict[str, dict[str, int]]:
    """How inputs are given; nothing for one that no workload gives."""
    names = dict.fromkeys([*definition.inputs, *(name for workload in workloads for name in workload.inputs)])
    kinds = {name: Counter(w.inputs[name].type for w in workloads if name in w.inputs) for name in names}
    return {name: dict(sorted(counts.items())) for name, counts in kinds.items() if counts}


def bars(sizes: Sequence[int]) -> list[Bar]:
    """A histogram: a bar for each size if there are few, else one for each power of two that occurs.

    Args:
        sizes: From 0 on.
    """
    counts = Counter(sizes)
    if len(counts) <= _MOST_SINGLE:
        return [Bar(size, size, counts[size]) for size in sorted(counts)]
    by_power: Counter[int] = Counter()
    for size, count in counts.items():
        by_power[size.bit_length()] += count
    return [Bar(*_range(power), by_power[power]) for power in sorted(by_power)]


def _range(power: int) -> tuple[int, int]:
    return (0, 0) if power == 0 else (1 << (power - 1), (1 << power) - 1)
