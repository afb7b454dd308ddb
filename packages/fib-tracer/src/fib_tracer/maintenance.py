"""Maintenance of a data set's workloads: survey and sampling.

`survey` counts sizes, inputs and files of tensors. `sample` copies workloads that a filter policy chooses into a
smaller data set, with all counts of traced calls: those of a size are then divided among its workloads there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from fib_schema import (
    BlobError,
    Definition,
    Problem,
    Report,
    SafetensorsInput,
    Severity,
    TargetNotEmpty,
    Trace,
    TraceSet,
    Workload,
    validate,
)
from fib_schema.blobs import check_blob, load_tensor
from fib_schema.command import plain_problems
from fib_schema.files import copy_file, is_temporary, staged, walk
from fib_schema.traffic import FOLDER, DefinitionTraffic, load_traffic

from .policies import Call, Decision, FilterPolicy, WorkloadEntry
from .settings import TracingConfig

_MAX_WRITE_SECONDS = 3600.0
"""A temporary file that is older belongs to a writer that was killed."""
_MAX_SINGLE_BINS = 8
"""Up to this many different sizes have a bin each; more are grouped by powers of two."""


@attrs.frozen
class Bin:
    """The number of workloads with a size in a range."""

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
    axes: Mapping[str, Sequence[Bin]]
    inputs: Mapping[str, Mapping[str, int]]
    """Number of workloads that give each input as ``random``, ``scalar`` or ``safetensors``."""
    blobs: int
    blob_bytes: int
    calls: int
    """Calls that processes counted while they traced."""
    recorded_calls: int
    """Number of calls whose sizes and layout a workload has."""


@attrs.frozen
class MissingBlob:
    """A file of tensors that a workload names and that does not exist."""

    path: str
    definition: str
    workload: str


@attrs.frozen
class Survey:
    """The workloads of a data set."""

    definitions: Sequence[DefinitionSurvey]
    orphans: Mapping[str, int]
    """Files that neither a workload nor a trace names, with their sizes in bytes; paths are relative to the root."""
    missing: Sequence[MissingBlob]
    blobs: int
    """Files of tensors, including orphans."""
    blob_bytes: int
    unknown: Sequence[str]
    """Definitions that workloads name and that the set lacks."""
    problems: Sequence[Problem]
    """Problems of the files that were read, and of tensors that exist but are unusable."""

    @property
    def without_workloads(self) -> list[str]:
        """The definitions that have no workload."""
        return [definition.name for definition in self.definitions if not definition.workloads]

    def to_plain(self) -> dict[str, Any]:
        """As plain objects, for JSON."""
        plain = attrs.asdict(self, filter=lambda field, _: field.name != "problems")
        return {**plain, "without_workloads": self.without_workloads, "problems": plain_problems(self.problems)}


def survey(trace_set: TraceSet, names: Iterable[str] | None = None) -> Survey:
    """Survey the workloads of a data set.

    Raises:
        UnknownName: There is no such definition.
        NoRoot: The data set is in memory only.
    """
    chosen = list(trace_set.definitions) if names is None else list(dict.fromkeys(names))
    definitions = [trace_set.get_definition(name) for name in sorted(chosen)]
    files = blob_files(trace_set)
    groups = {d.name: trace_set.workloads.get(d.name, []) for d in definitions}
    counted = files
    if names is not None:
        folders = tuple(f"{blob_folder(definition)}/" for definition in definitions)
        counted = {path: size for path, size in files.items() if path.startswith(folders)}
    named = {*blobs_in(trace_set.workloads), *blobs_in(trace_set.traces)}
    missing = {
        path: MissingBlob(path, name, trace.workload.uuid)
        for name, group in groups.items()
        for trace in group
        for path in blobs_of([trace])
        if path not in files
    }
    workloads = ((f"workload {t.workload.uuid!r} of {t.definition!r}", t) for group in groups.values() for t in group)
    bad_blobs = blob_problems(trace_set, workloads, except_of=missing)
    traffic = load_traffic(trace_set.root or "")
    return Survey(
        [_of_definition(d, groups[d.name], files, traffic.definitions.get(d.name)) for d in definitions],
        {path: size for path, size in counted.items() if path not in named},
        list(missing.values()),
        len(counted),
        sum(counted.values()),
        [] if names is not None else sorted(set(trace_set.workloads) - set(trace_set.definition_names())),
        [*(trace_set.all_problems() if names is None else trace_set.problems), *bad_blobs, *traffic.problems],
    )


def blobs_of(traces: Iterable[Trace]) -> Iterator[str]:
    """The blobs that traces or workloads name, relative to the root and without a leading ``./``."""
    for trace in traces:
        for source in trace.workload.inputs.values():
            if isinstance(source, SafetensorsInput):
                yield source.path.removeprefix("./")


def blobs_in(groups: Mapping[str, Sequence[Trace]]) -> Iterator[str]:
    """The blobs that traces name, of a mapping of traces by definition."""
    for name in groups:
        yield from blobs_of(groups[name])


def blob_problems(
    trace_set: TraceSet, named: Iterable[tuple[str, Trace]], *, except_of: Iterable[str] = ()
) -> Iterator[Problem]:
    """Problems of blobs, of which headers are read; each blob is checked once."""
    checked = set(except_of)
    for source, trace in named:
        for path in blobs_of([trace]):
            if path not in checked:
                checked.add(path)
                try:
                    check_blob(trace_set.root, path)
                except BlobError as error:
                    yield Problem(source, "$", str(error), code="bad-blob")


def blob_files(trace_set: TraceSet) -> dict[str, int]:
    """The files of workloads' tensors with their sizes in bytes; paths are relative to the root.

    Temporary files are included when their writer must have been killed.
    """
    root = os.fspath(trace_set.blob_workloads_path.parent.parent)
    found: dict[str, int] = {}
    for entry in walk(trace_set.blob_workloads_path):
        file = Path(entry.path)
        with contextlib.suppress(FileNotFoundError):  # its writer has just given it another name
            if os.path.isfile(file) and (not entry.name.startswith(".") or _is_abandoned(file)):  # noqa: PTH113 never raises
                found[file.relative_to(root).as_posix()] = file.stat().st_size
    return found


def _is_abandoned(file: Path) -> bool:
    """Whether a hidden file is a temporary file of a writer that was killed."""
    return is_temporary(file.name) and time.time() - file.lstat().st_mtime > _MAX_WRITE_SECONDS


def blob_folder(definition: Definition) -> str:
    """The folder of the tensors of a definition's workloads, relative to the root."""
    return f"blob/workloads/{definition.op_type}/{definition.name}"


def _of_definition(
    definition: Definition, traces: Sequence[Trace], files: Mapping[str, int], traffic: DefinitionTraffic | None
) -> DefinitionSurvey:
    workloads = [trace.workload for trace in traces]
    axes = {axis: histogram([w.axes[axis] for w in workloads if axis in w.axes]) for axis in definition.var_axes}
    blobs = {path for path in blobs_of(traces) if path in files}
    return DefinitionSurvey(
        definition.name,
        definition.op_type,
        len(workloads),
        len({tuple(sorted(workload.axes.items())) for workload in workloads}),
        axes if workloads else {},
        _input_types(definition, workloads),
        len(blobs),
        sum(files[path] for path in blobs),
        0 if traffic is None else traffic.calls,
        0 if traffic is None else round(sum(traffic.calls_by_workload(workloads).values())),
    )


def _input_types(definition: Definition, workloads: Sequence[Workload]) -> dict[str, dict[str, int]]:
    """Number of workloads that give an input in each way; inputs that no workload gives are left out."""
    names = dict.fromkeys([*definition.inputs, *(name for workload in workloads for name in workload.inputs)])
    types = {name: Counter(w.inputs[name].type for w in workloads if name in w.inputs) for name in names}
    return {name: dict(sorted(counts.items())) for name, counts in types.items() if counts}


def histogram(sizes: Sequence[int]) -> list[Bin]:
    """A histogram: a bin for each size if there are few, else one for each power of two that occurs."""
    counts = Counter(sizes)
    if len(counts) <= _MAX_SINGLE_BINS:
        return [Bin(size, size, counts[size]) for size in sorted(counts)]
    by_power: Counter[int] = Counter()
    for size, count in counts.items():
        by_power[size.bit_length()] += count
    return [_bin_of_power(power, by_power[power]) for power in sorted(by_power)]


def _bin_of_power(power: int, workloads: int) -> Bin:
    return Bin(0, 0, workloads) if power == 0 else Bin(1 << (power - 1), (1 << power) - 1, workloads)


# -- sampling ----------------------------------------------------------------------------------------


@attrs.define
class SampleReport:
    """Workloads that were chosen and copied."""

    target: str
    definitions: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    """Number of workloads, and of chosen ones, by definition."""
    blobs: int = 0
    blob_bytes: int = 0
    problems: list[Problem] = attrs.field(factory=list)
    """Workloads that were skipped because tensors are missing."""
    validation: Report | None = None
    """The validation of the new set."""

    @property
    def is_ok(self) -> bool:
        """Whether no workload was skipped and the new set is valid."""
        return not self.problems and (self.validation is None or self.validation.is_ok)

    def to_plain(self) -> dict[str, Any]:
        """As plain objects, for JSON."""
        return {
            "target": self.target,
            "is_ok": self.is_ok,
            "definitions": {name: {"of": of, "chosen": chosen} for name, (of, chosen) in self.definitions.items()},
            "blobs": self.blobs,
            "blob_bytes": self.blob_bytes,
            "problems": plain_problems(self.problems),
            "validation": None if self.validation is None else self.validation.to_plain(),
        }


def sample(
    dataset: str | os.PathLike[str] | None,
    target: str | os.PathLike[str],
    config: TracingConfig,
    names: Iterable[str] | None = None,
) -> SampleReport:
    """Make a smaller data set: definitions, some of their workloads, and the files of their tensors, byte for byte.

    Args:
        dataset: The data set's root; None means ``FIB_DATASET_PATH`` or the default. It is not changed.
        target: A folder that is new or empty; it is published by one rename.
        config: Its filter policy chooses, separately for each definition.
        names: Of definitions; None means all.

    Raises:
        DataSetNotFound: There is no such data set.
        TargetNotEmpty: The target holds something, or lies inside the data set.
        UnknownName: There is no such definition.
        OSError: The target cannot be written.
    """
    source = TraceSet.from_path(dataset)
    definitions = [source.get_definition(name) for name in (names or source.definitions)]
    _check_target(source, target)
    report = SampleReport(os.fspath(target))
    with staged(target) as draft:
        draft.mkdir()
        _write(source, definitions, draft, config, report)
    found = source.all_problems() if names is None else source.problems
    report.problems += [problem for problem in found if problem.severity is Severity.ERROR]
    report.validation = validate(target)
    return report


def _write(
    source: TraceSet, definitions: Iterable[Definition], folder: Path, config: TracingConfig, report: SampleReport
) -> None:
    new = TraceSet.from_path(folder)
    new.add_definitions(definitions)
    for definition in definitions:
        traces = source.workloads.get(definition.name, [])
        chosen = _chosen(source, definition, traces, config.make_filter_policy(), report.problems)
        report.definitions[definition.name] = len(traces), len(chosen)
        for path in dict.fromkeys(blobs_of(chosen)):
            copy = folder / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_root(source) / path, copy)
            report.blob_bytes += copy.stat().st_size
            report.blobs += 1
        if chosen:
            new.add_traces(chosen)
    traffic = _root(source) / FOLDER
    for file in sorted(filter(Path.is_file, traffic.glob("[!.]*.json"))):
        copy_file(file, folder / FOLDER / file.name, may_link=False)


def _check_target(source: TraceSet, target: str | os.PathLike[str]) -> None:
    folder, root = Path(target), _root(source)
    if _is_below(folder, root):
        raise TargetNotEmpty(os.fspath(target), f"lies inside {os.fspath(root)!r}, which is sampled")
    if os.path.lexists(folder) and not folder.is_dir():
        raise TargetNotEmpty(os.fspath(target), "is not a folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise TargetNotEmpty(os.fspath(target), "is not empty")


def _root(source: TraceSet) -> Path:
    return source.workloads_path.parent


def _is_below(path: Path, folder: Path) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)


def _chosen(
    source: TraceSet, definition: Definition, traces: Iterable[Trace], policy: FilterPolicy, problems: list[Problem]
) -> list[Trace]:
    """The workloads that a policy keeps when they are presented as consecutive calls."""
    kept: list[Trace] = []
    is_closed = False
    for trace in traces:
        try:
            for path in blobs_of([trace]):
                check_blob(source.root, path)
            call = None if is_closed else _call(source, definition, trace.workload, policy)
        except BlobError as error:
            workload = f"workload {trace.workload.uuid!r} of {trace.definition!r}"
            problems.append(Problem(workload, "$", f"{error}; it was skipped", code="bad-blob"))
            continue
        if call is None:
            continue
        decision = policy.decide(call)
        is_closed = decision is Decision.CLOSED
        if decision is Decision.KEEP:
            entry = WorkloadEntry(definition, call.axes, {}, len(kept), 0, policy.admit(call), call.probed)
            kept.append(trace)
            if not policy.is_final:
                policy.submit(entry)
    return kept if policy.is_final else [kept[entry.order] for entry in policy.drain()]


def _call(source: TraceSet, definition: Definition, workload: Workload, policy: FilterPolicy) -> Call:
    """A workload as the call that it was; elements are known if their tensors were stored."""
    inputs: dict[str, Any] = dict.fromkeys(definition.inputs)
    probed: dict[str, int] = {}
    for label, (name, index) in policy.value_probes(definition).items():
        stored = workload.inputs.get(name)
        if isinstance(stored, SafetensorsInput):
            inputs[name] = load_tensor(source.root, stored.path, stored.tensor_key).reshape(-1)
            if not inputs[name].numel():
                raise BlobError(stored.path, f"{stored.tensor_key!r} is empty, and the policy needs an element of it")
            probed[label] = int(inputs[name][index])
    return Call(definition, dict(workload.axes), inputs, probed)
