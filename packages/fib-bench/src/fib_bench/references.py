"""References as solutions: added to a data set, or run on all workloads to see that they can be evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import attrs
from fib_compile.registry import reference_solution
from fib_schema import Definition, InvalidRecord, Solution, TraceSet

from .benchmark import Benchmark
from .config.model import BenchmarkConfig
from .report import error_line

REFERENCE_AUTHOR = "reference"


def run_references(trace_set: TraceSet, config: BenchmarkConfig, names: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """Reasons for which references do not run on all workloads, compared with themselves; nothing is recorded."""
    definitions = _readable(trace_set, names)
    workloads = {name: trace_set.workloads.get(name, []) for name in definitions}
    solutions = {name: [_as_solution(definition)] for name, definition in definitions.items()}
    problems: dict[str, list[str]] = {name: [] for name in definitions}
    selected = config.with_fields(definitions=None, solutions=None, profile_baseline=False)
    result = Benchmark(TraceSet(trace_set.root, definitions, solutions, workloads), selected).run(dump_traces=False)
    for skip in result.skipped:
        problems[skip.definition].append(skip.reason)
    for trace in result.traces:
        if trace.evaluation is not None and not trace.is_successful():
            line = error_line(trace.evaluation) or "no log"
            problems[trace.definition].append(f"{trace.workload.uuid}: {trace.evaluation.status}: {line}")
    return {name: tuple(found) for name, found in problems.items()}


def _as_solution(definition: Definition) -> Solution:
    solution = reference_solution(definition)
    spec = attrs.evolve(solution.spec, target_hardware=("cpu", "cuda"))
    return attrs.evolve(solution, name=f"{definition.name}_{REFERENCE_AUTHOR}", author=REFERENCE_AUTHOR, spec=spec)


def _readable(trace_set: TraceSet, names: Iterable[str]) -> dict[str, Definition]:
    found = {}
    for name in names:
        with suppress(InvalidRecord):  # validation reports it
            found[name] = trace_set.get_definition(name)
    return found


def add_references(trace_set: TraceSet, config: BenchmarkConfig) -> list[Solution]:
    """Add the reference of each definition that `config` selects and that has no solution, as ``NAME_reference``.

    Invalid definitions are left out; the plan of a run reports them.
    """
    names = trace_set.definition_names() if config.definitions is None else config.definitions
    lacking = _readable(trace_set, [name for name in names if not trace_set.solution_names(name)])
    chosen = [d for d in lacking.values() if config.op_types is None or d.op_type in config.op_types]
    taken = set(trace_set.solution_names())
    added = [solution for solution in map(_as_solution, chosen) if solution.name not in taken]
    trace_set.add_solutions(added)
    return added
