"""Sampling of a data set: workloads that a filter policy chooses, copied into a smaller data set.

Counts of traced calls are copied whole: the calls of a size are then divided among its workloads in the new set.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
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
from fib_schema.files import copy_file, staged
from fib_schema.traffic import FOLDER

from .policies import Call, Decision, FilterPolicy, WorkloadEntry
from .settings import TracingConfig
from .survey import blobs_of


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
            "problems": [{"source": problem.source, "message": problem.message} for problem in self.problems],
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
