"""Tools that read and write the data set: list definitions, describe one, submit a solution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
from fib_bench.authoring.solutions import add_version
from fib_bench.report.leaderboard import axes_text, best
from fib_schema import Definition, TensorSpec, Workload
from fib_schema.display import counted
from fib_schema.trace_facts import CPU_TIMING

from .errors import InvalidArguments
from .results import Result
from .triage import FORBIDDEN, Finding, first_findings, forbidden_by
from .workspace import Code, Workspace, choose_workloads, read_solution

_SHOWN_WORKLOADS = 12


@attrs.frozen
class DefinitionLine:
    """A definition in a list."""

    name: str
    op_type: str
    description: str
    workloads: int
    solutions: int


@attrs.frozen
class DefinitionList(Result):
    """The definitions of a data set."""

    definitions: tuple[DefinitionLine, ...]
    problems: tuple[str, ...] = ()
    """Files that cannot be read."""

    def lines(self) -> Iterator[str]:
        """A line for each definition."""
        if not self.definitions:
            yield "no definitions"
        for one in self.definitions:
            text = f": {one.description}" if one.description else ""
            counts = f"{counted(one.workloads, 'workload')}, {counted(one.solutions, 'solution')}"
            yield f"{one.name} ({one.op_type}, {counts}){text}"
        yield from (f"problem: {problem}" for problem in self.problems)


@attrs.frozen
class WorkloadFacts:
    """A workload, what it costs at least, and the best known result."""

    uuid: str
    axes: Mapping[str, int]
    inputs: Mapping[str, str]
    """Source of each input: ``random``, a scalar's value, or ``from a file``."""
    bytes: int | None
    """The bytes that a call must move; None if the op_type declares no work, or it depends on values."""
    operations: int | None
    floor_ms: float | None
    """The least latency by the roofline of `device`, or of that of the best result; None where the work is unknown."""
    best_solution: str | None
    best_latency_ms: float | None
    best_speedup: str | None
    best_hardware: str | None


@attrs.frozen
class Description(Result):
    """Everything that an author needs to know about a definition."""

    name: str
    op_type: str
    description: str
    axes: Mapping[str, int | None]
    """Sizes; None varies between workloads."""
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    constraints: tuple[str, ...]
    forbids: Mapping[str, Sequence[str]]
    """Patterns of constructs that `submit` refuses."""
    reference: str
    workload_count: int
    workloads: tuple[WorkloadFacts, ...]
    device: str

    def lines(self) -> Iterator[str]:
        """Signature, reference and workloads."""
        yield f"{self.name} ({self.op_type}) {self.description}".rstrip()
        yield "axes: " + ", ".join(f"{name}={size or 'varies'}" for name, size in self.axes.items())
        style = "or fills outputs that follow the inputs"
        yield f"run({', '.join(self.inputs)}) returns ({', '.join(self.outputs)}), {style}"
        for title, tensors in (("input", self.inputs), ("output", self.outputs)):
            yield from (f"{title} {name}: {kind}" for name, kind in tensors.items())
        yield from (f"constraint: {one}" for one in self.constraints)
        yield from (f"forbidden {kind}: {', '.join(patterns)}" for kind, patterns in self.forbids.items())
        yield "reference:"
        yield from self.reference.rstrip().splitlines()
        yield f"workloads ({len(self.workloads)} of {self.workload_count}):"
        yield from map(_workload_line, self.workloads)


@attrs.frozen
class Submitted(Result):
    """A solution in the data set. Its versions are immutable: changed code gets the next name."""

    solution: str
    definition: str
    is_new: bool
    path: str | None
    findings: tuple[Finding, ...]

    def lines(self) -> Iterator[str]:
        """The name and the file of the solution."""
        if self.is_new:
            yield f"submitted {self.solution} to {self.definition}: {self.path}"
        else:
            yield f"nothing written: {self.solution} of {self.definition} has the same code and settings"
        yield from (finding.describe() for finding in self.findings)
        yield f"next: evaluate with solution {self.solution!r} and quick false"


def list_definitions(workspace: Workspace, *, op_type: str | None = None) -> DefinitionList:
    """List the definitions of the data set: the kernels that can be written.

    Args:
        workspace: Where to work.
        op_type: Only definitions of this kind, such as rmsnorm.
    """
    trace_set = workspace.open()
    found = []
    for name, definition in trace_set.definitions.items():
        if op_type in (None, definition.op_type):
            workloads, solutions = trace_set.workloads.get(name, ()), trace_set.solution_names(name)
            text = (definition.description or "").strip().partition("\n")[0]
            found.append(DefinitionLine(name, definition.op_type, text, len(workloads), len(solutions)))
    return DefinitionList(tuple(found), tuple(map(str, trace_set.problems)))


def describe(workspace: Workspace, definition: str, *, workloads: Sequence[str] | None = None) -> Description:
    """Describe a definition: signature, reference, workloads, least latency, best known results.

    Args:
        workspace: Where to work.
        definition: The name of the definition.
        workloads: The uuids of workloads to describe; by default up to 12, from the first to the last.

    Raises:
        UnknownName: There is no such definition or workload.
    """
    trace_set = workspace.open()
    found = trace_set.get_definition(definition)
    has_none = workloads is None and not trace_set.workloads.get(definition)
    chosen = () if has_none else choose_workloads(trace_set, found, workloads, _SHOWN_WORKLOADS)
    winners = {one.workload: one for one in best(trace_set, [definition], allow_flags=[CPU_TIMING])}
    facts = []
    for workload in chosen:
        one = winners.get(workload.uuid)
        moved, operations, floor_ms = _floor_of(workspace.device, found, workload)
        if floor_ms is None and one is not None and one.attainable_fraction is not None:
            floor_ms = one.attainable_fraction * one.latency_ms  # the judge knows the values that the work depends on
        known = (one.solution, one.latency_ms, one.speedup.text, one.hardware) if one else (None,) * 4
        inputs = {name: _input_text(spec) for name, spec in workload.inputs.items()}
        facts.append(WorkloadFacts(workload.uuid, dict(workload.axes), inputs, moved, operations, floor_ms, *known))
    return Description(
        name=found.name,
        op_type=found.op_type,
        description=(found.description or "").strip(),
        axes={name: found.const_axes.get(name) for name in found.axes},
        inputs={name: _type_text(spec) for name, spec in found.inputs.items()},
        outputs={name: _type_text(spec) for name, spec in found.outputs.items()},
        constraints=tuple(found.constraints or ()),
        forbids=forbidden_by(found),
        reference=found.reference,
        workload_count=len(trace_set.workloads.get(definition, ())),
        workloads=tuple(facts),
        device=workspace.device,
    )


def submit(workspace: Workspace, definition: str, solution: Code, *, name: str = "kernel") -> Submitted:
    """Write a solution into the data set. Nothing is overwritten: changed code becomes the next version.

    Args:
        workspace: Where to work.
        definition: The name of the definition.
        solution: The files, such as {"kernel.py": source}.
        name: The name without a version; versions end in _v2, _v3 and so on.

    Raises:
        UnknownName: There is no such definition.
        InvalidArguments: The definition forbids a construct of the solution.
        InvalidField: The name has characters that names may not have.
        KernelFileError: Language, entry point or style cannot be inferred.
    """
    trace_set = workspace.open()
    found = trace_set.get_definition(definition)
    given = read_solution(workspace, trace_set, found, solution)
    findings = first_findings(given, found)
    if against := [one for one in findings if one.level == FORBIDDEN]:
        raise InvalidArguments("submit", [one.describe() for one in against])
    added = add_version(workspace.root, definition, name, workspace.author, given.spec, given.sources)
    path = None if added.path is None else str(added.path)
    return Submitted(added.solution.name, definition, added.is_new, path, findings)


def _type_text(spec: TensorSpec) -> str:
    return str(spec.dtype) if spec.shape is None else f"{spec.dtype}[{', '.join(spec.shape)}]"


def _input_text(spec: object) -> str:
    kind = type(spec).__name__
    return {"RandomInput": "random", "SafetensorsInput": "from a file"}.get(kind, str(getattr(spec, "value", kind)))


def _floor_of(device: str, definition: Definition, workload: Workload) -> tuple[int | None, int | None, float | None]:
    """Bytes, operations and the least latency of a workload; None where they depend on the values of the inputs."""
    import torch
    from fib_bench.timing.work import theoretical_peaks, work_of

    work = work_of(definition, workload.axes)
    if work is None:
        return None, None, None
    peaks = theoretical_peaks(torch.device(device))
    floor_ms = None if peaks is None else peaks.attainable_ms(work)
    return work.read_bytes + work.written_bytes, work.operations, floor_ms


def _workload_line(one: WorkloadFacts) -> str:
    parts = [f"- {one.uuid} [{axes_text(one.axes)}]"]
    if one.bytes is not None:
        parts.append(f"moves {one.bytes} bytes" + (f", {one.operations} operations" if one.operations else ""))
    if one.floor_ms is not None:
        parts.append(f"floor {1e3 * one.floor_ms:.2f} us")
    if one.best_solution is not None:
        latency = f"{one.best_latency_ms:.5g} ms, {one.best_speedup} ({one.best_hardware})"
        parts.append(f"best: {one.best_solution} {latency}")
    return "; ".join(parts)
