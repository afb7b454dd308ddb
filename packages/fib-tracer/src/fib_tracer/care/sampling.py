"""Chooses some of a data set's workloads, by the policies that choose calls, into a smaller set of its own."""

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
    TargetNotEmpty,
    Trace,
    TraceSet,
    Workload,
    validate,
)
from fib_schema.blobs import load_tensor

from ..config import TracingConfig
from ..policies.calls import Call, WorkloadEntry
from ..policies.filtering import FilterPolicy, Verdict
from .survey import blobs_of


@attrs.define
class SampleReport:
    """What was chosen and copied."""

    target: str
    definitions: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    """By definition: how many workloads there were, and how many were chosen."""
    blobs: int = 0
    blob_bytes: int = 0
    problems: list[Problem] = attrs.field(factory=list)
    """Workloads that could not be chosen, for their tensors are not there."""
    validation: Report | None = None
    """The state of the new set."""

    @property
    def is_ok(self) -> bool:
        """Whether every workload could be looked at and the new set is valid."""
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
    """Make a smaller data set: definitions, some of their workloads, and the tensors of these byte for byte.

    Args:
        dataset: The data set's root; None means ``FIB_DATASET_PATH`` or the default. It is not changed.
        target: A folder that is new or empty.
        config: Whose filter policy chooses, separately for each definition.
        names: Definitions to take; None means all.

    Raises:
        DataSetNotFound: There is no such data set.
        TargetNotEmpty: The target holds something, or lies inside the data set.
        UnknownName: There is no such definition.
        OSError: The target cannot be written.
    """
    source = TraceSet.from_path(dataset)
    definitions = [source.get_definition(name) for name in (names or source.definitions)]
    folder = _new_folder(source, target)
    report = SampleReport(os.fspath(target))
    new = TraceSet.from_path(folder)
    new.add_definitions(definitions)
    for definition in definitions:
        traces = [t for t in source.workloads.get(definition.name, []) if _is_whole(source, t, report.problems)]
        chosen = _chosen(source, definition, traces, config.make_filter_policy(), report.problems)
        report.definitions[definition.name] = len(source.workloads.get(definition.name, [])), len(chosen)
        for path in dict.fromkeys(blobs_of(chosen)):
            report.blob_bytes += _copy(_file(source, path), folder / path)
            report.blobs += 1
        if chosen:
            new.add_traces(chosen)
    report.validation = validate(folder)
    return report


def _new_folder(source: TraceSet, target: str | os.PathLike[str]) -> Path:
    folder, root = Path(target), _root(source)
    if os.path.realpath(folder).startswith(os.path.realpath(root) + os.sep):
        raise TargetNotEmpty(os.fspath(target), f"lies inside {os.fspath(root)!r}, which is sampled")
    if os.path.lexists(folder) and not folder.is_dir():
        raise TargetNotEmpty(os.fspath(target), "is no folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise TargetNotEmpty(os.fspath(target), "is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _root(source: TraceSet) -> Path:
    return source.workloads_path.parent


# -- choosing ----------------------------------------------------------------------------------------


def _chosen(
    source: TraceSet, definition: Definition, traces: Iterable[Trace], policy: FilterPolicy, problems: list[Problem]
) -> list[Trace]:
    """The workloads that a policy keeps, as if they were calls that come one after the other."""
    kept: list[Trace] = []
    for trace in traces:
        try:
            call = _call(source, definition, trace.workload, policy)
        except BlobError as error:
            problems.append(_passed_over(trace, error))
            continue
        verdict = policy.wants(call)
        if verdict is Verdict.CLOSED:
            break
        if verdict is Verdict.KEEP:
            entry = WorkloadEntry(definition, call.axes, {}, len(kept), 0, policy.admit(call), call.peeked)
            kept.append(trace)
            if not policy.is_final:
                policy.submit(entry)
    return kept if policy.is_final else [kept[entry.order] for entry in policy.drain()]


def _call(source: TraceSet, definition: Definition, workload: Workload, policy: FilterPolicy) -> Call:
    """A workload as the call that it was; elements are known where their tensors were stored."""
    inputs: dict[str, Any] = dict.fromkeys(definition.inputs)
    peeked: dict[str, int] = {}
    for label, (name, index) in policy.peeks(definition).items():
        stored = workload.inputs.get(name)
        if isinstance(stored, SafetensorsInput):
            inputs[name] = load_tensor(source.root, stored.path, stored.tensor_key).reshape(-1)
            if not inputs[name].numel():
                raise BlobError(stored.path, f"{stored.tensor_key!r} is empty, and the policy needs an element of it")
            peeked[label] = int(inputs[name][index])
    return Call(definition, dict(workload.axes), inputs, peeked)


def _is_whole(source: TraceSet, trace: Trace, problems: list[Problem]) -> bool:
    """Whether the files of a workload's tensors are there; if not, that is reported."""
    try:
        for path in blobs_of([trace]):
            _file(source, path)
    except BlobError as error:
        problems.append(_passed_over(trace, error))
        return False
    return True


def _passed_over(trace: Trace, error: BlobError) -> Problem:
    place = f"workload {trace.workload.uuid!r} of {trace.definition!r}"
    return Problem(place, "$", f"{error}; it was passed over", code="bad-blob")


def _file(source: TraceSet, path: str) -> Path:
    """A blob's file, which must lie in the data set."""
    root = _root(source)
    file = root / path.removeprefix("./")
    if not os.path.realpath(file).startswith(os.path.realpath(root) + os.sep):
        raise BlobError(path, "leads out of the data set through a link")
    if not file.is_file():
        raise BlobError(path, "the file does not exist")
    return file


def _copy(file: Path, target: Path) -> int:
    """Copy a file's bytes; returns how many."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
    return target.stat().st_size
