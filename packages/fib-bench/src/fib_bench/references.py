"""References as solutions: added to a data set, or run on all workloads to see that they can be evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
from fib_compile.device import hardware_from_device, list_cuda_devices
from fib_compile.registry import reference_solution
from fib_schema import Definition, InvalidRecord, Solution, Trace, TraceSet

from .benchmark import Benchmark
from .config.benchmark import BenchmarkConfig

REFERENCE_AUTHOR = "reference"


def run_references(trace_set: TraceSet, config: BenchmarkConfig, names: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """Run references on all workloads, as solutions that are compared with themselves; nothing is recorded.

    Args:
        trace_set: The data set.
        config: The device and the settings; its names select nothing.
        names: The definitions; those that cannot be read are left out.

    Returns:
        Reasons for which references do not run, by definition.
    """
    definitions = _readable(trace_set, names)
    workloads = {name: trace_set.workloads.get(name, []) for name in definitions}
    targets = _hardware(config)
    solutions = {
        name: [_as_solution(definition, targets, f"{name} (reference)")] for name, definition in definitions.items()
    }
    problems: dict[str, list[str]] = {name: [] for name in definitions}
    selected = config.with_fields(definitions=None, solutions=None, profile_baseline=False)
    result = Benchmark(TraceSet(trace_set.root, definitions, solutions, workloads), selected).run(dump_traces=False)
    for skip in result.skipped:
        problems[skip.definition].append(skip.reason)
    for trace in result.traces:
        if not trace.is_successful():
            problems[trace.definition].append(_failure(trace))
    return {name: tuple(found) for name, found in problems.items()}


def _hardware(config: BenchmarkConfig) -> tuple[str, ...]:
    devices = (config.device,) if config.devices is None else config.devices
    devices = tuple(list_cuda_devices()) if "all" in devices else devices
    return tuple(dict.fromkeys(map(hardware_from_device, devices)))


def _as_solution(definition: Definition, targets: tuple[str, ...], name: str) -> Solution:
    """The reference as a solution for some hardware."""
    solution = reference_solution(definition)
    return attrs.evolve(solution, name=name, spec=attrs.evolve(solution.spec, target_hardware=targets))


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
