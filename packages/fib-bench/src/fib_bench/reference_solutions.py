"""References of definitions without solutions, added to a data set as solutions."""

from __future__ import annotations

import attrs
from fib_compile.registry import reference_solution
from fib_schema import InvalidRecord, Solution, TraceSet

from .config.benchmark import BenchmarkConfig

AUTHOR = "reference"


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
    names = config.definitions if config.definitions is not None else trace_set.definition_names()
    taken = set(trace_set.solution_names())
    added = []
    for name in names:
        if trace_set.solution_names(name):
            continue
        try:
            definition = trace_set.get_definition(name)
        except InvalidRecord:
            continue
        if config.op_types is not None and definition.op_type not in config.op_types:
            continue
        solution = reference_solution(definition)
        spec = attrs.evolve(solution.spec, target_hardware=("cpu", "cuda"))
        solution = attrs.evolve(solution, name=f"{name}_{AUTHOR}", author=AUTHOR, spec=spec)
        if solution.name not in taken:
            added.append(solution)
    trace_set.add_solutions(added)
    return added
