"""Baselines: solutions that call the library itself, against which speedups are quoted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
from fib_schema import BuildSpec, Definition, FibError, Solution, SourceFile, TraceSet

from .adapter import Adapter

AUTHOR = "flashinfer"
_HARDWARE = ("cuda",)


def baseline_name(definition: Definition) -> str:
    """The name of a definition's baseline."""
    return f"flashinfer_{definition.name}"


def baseline_solution(adapter: Adapter, definition: Definition, author: str = AUTHOR) -> Solution | None:
    """A solution that calls the library; None if the adapter does not support the definition.

    ``setup`` calls the library's plan, if it has one. The outputs are returned or passed, as the library does it.
    """
    if definition.op_type not in adapter.op_types or adapter.baseline is None:
        return None
    source = adapter.baseline(definition)
    if source is None:
        return None
    signature = next(line for line in source.splitlines() if line.startswith("def run("))
    spec = BuildSpec(
        "python",
        list(_HARDWARE),
        "main.py::run",
        dependencies=["flashinfer-python"],
        destination_passing_style=all(f" {name}" in signature for name in definition.outputs),
    )
    return Solution(
        baseline_name(definition),
        definition.name,
        author,
        spec,
        [SourceFile("main.py", source)],
        description=f"Calls the library itself, as the adapter {adapter.name!r} of fib-integrations would.",
    )


def matching_baselines(adapter: Adapter, runtime: Any, definition: Definition) -> frozenset[str]:
    """The solutions in a runtime's data set that are the adapter's own baseline: at most one.

    Where it is the best solution, the original function is called: it is planned already, and writes in place.
    """
    ours = baseline_solution(adapter, definition)
    if ours is None:
        return frozenset()
    try:
        theirs = runtime.table.solution(ours.name)
    except FibError:
        return frozenset()  # the data set has no solution of this name
    return frozenset({ours.name}) if theirs.hash() == ours.hash() else frozenset()


@attrs.frozen
class Baselines:
    """The baselines of a data set's definitions."""

    solutions: tuple[Solution, ...]
    unsupported: tuple[str, ...]
    """Names of definitions without a baseline."""
    existing: tuple[str, ...] = ()
    """Names of solutions that the data set already has."""


def make_baselines(
    trace_set: TraceSet, adapters: Iterable[Adapter], *, author: str = AUTHOR, names: Iterable[str] = ()
) -> Baselines:
    """The baselines of a data set's definitions.

    Args:
        trace_set: The data set.
        adapters: The first one that supports a definition makes its baseline.
        author: The author of the solutions.
        names: Definitions; all by default.
    """
    wanted = list(names) or list(trace_set.definitions)
    definitions = [trace_set.get_definition(name) for name in wanted]
    candidates = tuple(adapters)
    made = {definition.name: _first(candidates, definition, author) for definition in definitions}
    solutions = [solution for solution in made.values() if solution is not None]
    existing = set(trace_set.solution_names())
    return Baselines(
        tuple(solution for solution in solutions if solution.name not in existing),
        tuple(name for name, solution in made.items() if solution is None),
        tuple(solution.name for solution in solutions if solution.name in existing),
    )


def _first(adapters: Iterable[Adapter], definition: Definition, author: str) -> Solution | None:
    found = (baseline_solution(adapter, definition, author) for adapter in adapters)
    return next((solution for solution in found if solution is not None), None)
