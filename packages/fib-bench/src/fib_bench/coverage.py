"""Coverage of a data set: the definitions that lack workloads, baselines, or a reference that runs.

`measure_coverage` counts what a data set has, and runs references on request. `add_references` makes solutions of
references.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
from fib_compile.device import hardware_from_device, list_cuda_devices
from fib_compile.registry import reference_solution
from fib_schema import Definition, InvalidRecord, Solution, Trace, TraceSet
from fib_schema.display import counted, escape_line
from fib_schema.trace_facts import counting_traces

from .benchmark import Benchmark
from .config.benchmark import BenchmarkConfig

BASELINE_AUTHOR = "baseline"
REFERENCE_AUTHOR = "reference"


@attrs.frozen
class ReferenceRuns:
    """The workloads that a reference was run on."""

    passed: int
    total: int
    problems: tuple[str, ...] = ()
    """Reason for not running, by workload."""


@attrs.frozen
class DefinitionCoverage:
    """Records that a data set has for one definition."""

    name: str
    op_type: str
    workloads: int = 0
    solutions: int = 0
    baselines: tuple[str, ...] = ()
    """The baseline author's solutions; scores need exactly one."""
    measured: int = 0
    """The workloads that a baseline passed."""
    reference: ReferenceRuns | None = None
    """None if references were not run."""
    problem: str | None = None
    """Reason that the definition cannot be read."""

    @property
    def gaps(self) -> tuple[str, ...]:
        """Missing records, each as a sentence."""
        if self.problem is not None:
            return (f"it cannot be read: {self.problem}",)
        found = []
        if not self.workloads:
            found.append("it has no workloads")
        if not self.baselines:
            found.append("it has no baseline")
        elif len(self.baselines) > 1:
            found.append(f"it has {len(self.baselines)} baselines, and scores need one: {', '.join(self.baselines)}")
        if self.baselines and self.measured < self.workloads:
            found.append(f"its baseline passed on {self.measured} of {counted(self.workloads, 'workload')}")
        runs = self.reference
        if runs is not None and runs.passed < runs.total:
            found.append(
                f"its reference ran on {runs.passed} of {counted(runs.total, 'workload')}: {'; '.join(runs.problems)}"
            )
        return tuple(found)

    def to_plain(self) -> dict[str, Any]:
        """As plain objects for JSON."""
        return {**attrs.asdict(self), "gaps": list(self.gaps)}


@attrs.frozen
class Coverage:
    """The coverage of a data set."""

    root: str
    definitions: tuple[DefinitionCoverage, ...]

    @property
    def is_complete(self) -> bool:
        """Whether no definition has gaps."""
        return not any(definition.gaps for definition in self.definitions)

    @property
    def summary(self) -> str:
        """One line of counts."""
        total = len(self.definitions)
        counts = {
            "have workloads": sum(row.workloads > 0 for row in self.definitions),
            "have a baseline": sum(len(row.baselines) == 1 for row in self.definitions),
        }
        if any(row.reference is not None for row in self.definitions):
            counts["have a reference that runs"] = sum(_runs(row) for row in self.definitions)
        counts["lack nothing"] = sum(not row.gaps for row in self.definitions)
        return f"{self.root}: of {counted(total, 'definition')} " + ", ".join(
            f"{count} {what}" for what, count in counts.items()
        )

    def to_text(self) -> str:
        """A line for each gap, and the summary last."""
        lines = [f"{row.op_type}/{row.name}: {gap}" for row in self.definitions for gap in row.gaps]
        return "\n".join(map(escape_line, [*lines, self.summary]))

    def to_plain(self) -> dict[str, Any]:
        """As plain objects for JSON."""
        rows = [row.to_plain() for row in self.definitions]
        return {"root": self.root, "is_complete": self.is_complete, "summary": self.summary, "definitions": rows}


def _runs(row: DefinitionCoverage) -> bool:
    return row.reference is not None and 0 < row.reference.total == row.reference.passed


def measure_coverage(
    trace_set: TraceSet, *, baseline_author: str = BASELINE_AUTHOR, references: BenchmarkConfig | None = None
) -> Coverage:
    """Count what a data set has for each definition.

    Args:
        trace_set: The data set.
        baseline_author: The author of the baselines.
        references: The settings with which references are run on all workloads; None runs none.
    """
    runs = {} if references is None else run_references(trace_set, references)
    names = sorted(trace_set.definition_names())
    rows = [_row(trace_set, name, baseline_author, runs.get(name)) for name in names]
    return Coverage(str(trace_set.root or "a set in memory"), tuple(rows))


def _row(trace_set: TraceSet, name: str, author: str, reference: ReferenceRuns | None) -> DefinitionCoverage:
    try:
        definition = trace_set.get_definition(name)
    except InvalidRecord as error:
        return DefinitionCoverage(name, "?", problem=str(error))
    solutions = trace_set.solutions.get(name, [])
    baselines = tuple(solution.name for solution in solutions if solution.author == author)
    workloads = {trace.workload.uuid for trace in trace_set.workloads.get(name, [])}
    passed = {
        trace.workload.uuid
        for trace in counting_traces(trace_set, name)
        if trace.solution in baselines and trace.is_successful()
    }
    return DefinitionCoverage(
        name, definition.op_type, len(workloads), len(solutions), baselines, len(passed & workloads), reference
    )


def run_references(
    trace_set: TraceSet, config: BenchmarkConfig, names: Iterable[str] | None = None
) -> Mapping[str, ReferenceRuns]:
    """Run references on all workloads of their definitions, as solutions that are compared with themselves.

    Args:
        trace_set: The data set.
        config: The device and the settings; its names select nothing.
        names: The definitions; None means all that can be read.
    """
    definitions = _readable(trace_set, trace_set.definition_names() if names is None else names)
    workloads = {name: trace_set.workloads.get(name, []) for name in definitions}
    targets = _hardware(config)
    solutions = {
        n: [_as_solution(definition, targets, f"{n} (reference)")]
        for n, definition in definitions.items()
        if workloads[n]
    }
    single = TraceSet(trace_set.root, definitions, solutions, workloads)
    selected = config.with_fields(definitions=None, solutions=None, profile_baseline=False)
    problems: dict[str, list[str]] = {name: [] for name in definitions}
    passed = dict.fromkeys(definitions, 0)
    if any(solutions.values()):
        result = Benchmark(single, selected).run(dump_traces=False)
        for skip in result.skipped:
            problems.get(skip.definition, []).append(skip.reason)
        for trace in result.traces:
            if trace.is_successful():
                passed[trace.definition] += 1
            else:
                problems[trace.definition].append(_failure(trace))
    return {
        name: ReferenceRuns(
            passed[name], len({trace.workload.uuid for trace in workloads[name]}), tuple(problems[name])
        )
        for name in definitions
    }


def _hardware(config: BenchmarkConfig) -> tuple[str, ...]:
    devices = (config.device,) if config.devices is None else config.devices
    devices = tuple(list_cuda_devices()) if "all" in devices else devices
    return tuple(dict.fromkeys(map(hardware_from_device, devices)))


def _as_solution(definition: Definition, targets: tuple[str, ...], name: str) -> Solution:
    """The reference as a solution for some hardware."""
    solution = reference_solution(definition)
    spec = attrs.evolve(solution.spec, target_hardware=targets)
    return attrs.evolve(solution, name=name, spec=spec)


def _readable(trace_set: TraceSet, names: Iterable[str]) -> dict[str, Definition]:
    found = {}
    for name in names:
        try:
            found[name] = trace_set.get_definition(name)
        except InvalidRecord:
            continue  # validation reports it
    return found


def _failure(trace: Trace) -> str:
    assert trace.evaluation is not None  # of a run
    last = (trace.evaluation.log.strip().splitlines() or ["no log"])[-1]
    return f"{trace.workload.uuid}: {trace.evaluation.status}: {last}"


def add_references(trace_set: TraceSet, config: BenchmarkConfig) -> list[Solution]:
    """Add the reference of each selected definition that has no solution, as ``NAME_reference``.

    Invalid definitions are left out; the plan of a run reports them.

    Args:
        trace_set: The data set; with a root, the solutions are written there.
        config: Its `definitions` and `op_types` select.

    Raises:
        UnknownName: A selected definition does not exist.
        OSError: A file cannot be written.
    """
    names = trace_set.definition_names() if config.definitions is None else config.definitions
    taken = set(trace_set.solution_names())
    lacking = _readable(trace_set, [name for name in names if not trace_set.solution_names(name)])
    added = [
        attrs.evolve(_as_solution(definition, ("cpu", "cuda"), f"{name}_{REFERENCE_AUTHOR}"), author=REFERENCE_AUTHOR)
        for name, definition in lacking.items()
        if f"{name}_{REFERENCE_AUTHOR}" not in taken
        and (config.op_types is None or definition.op_type in config.op_types)
    ]
    trace_set.add_solutions(added)
    return added
