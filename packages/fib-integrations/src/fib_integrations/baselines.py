"""Solutions that call the library itself: what speedups should be quoted against."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from fib_schema import BuildSpec, Definition, Solution, SourceFile, TraceSet

from .adapter import Adapter

AUTHOR = "flashinfer"
_HARDWARE = ("cuda",)


def baseline_name(definition: Definition) -> str:
    """The name of a definition's baseline."""
    return f"flashinfer_{definition.name}"


def baseline_solution(adapter: Adapter, definition: Definition, author: str = AUTHOR) -> Solution | None:
    """A solution that calls the library; None if the adapter does not cover the definition.

    Where the library plans, ``setup`` does. It returns its outputs or takes them as arguments, as the library does.
    """
    if definition.op_type not in adapter.op_types or adapter.baseline is None:
        return None
    source = adapter.baseline(definition)
    if source is None:
        return None
    first_line = next(line for line in source.splitlines() if line.startswith("def run("))
    is_passing = all(f" {name}" in first_line for name in definition.outputs)
    spec = BuildSpec(
        "python",
        list(_HARDWARE),
        "main.py::run",
        dependencies=["flashinfer-python"],
        destination_passing_style=is_passing,
    )
    return Solution(
        baseline_name(definition),
        definition.name,
        author,
        spec,
        [SourceFile("main.py", source)],
        description=f"Calls the library itself, as the adapter {adapter.name!r} of fib-integrations would.",
    )


@attrs.frozen
class Baselines:
    """What was written, and what is not covered."""

    solutions: tuple[Solution, ...]
    uncovered: tuple[str, ...]
    """Names of definitions."""
    existing: tuple[str, ...] = ()
    """Names of solutions that were there already, and stay as they are."""


def baselines_of(
    trace_set: TraceSet, adapters: Iterable[Adapter], *, author: str = AUTHOR, names: Iterable[str] = ()
) -> Baselines:
    """The baselines of a data set's definitions.

    Args:
        trace_set: The data set.
        adapters: Whose libraries to call; the first that covers a definition.
        author: Who they are by.
        names: Definitions; nothing means all.
    """
    wanted = list(names) or list(trace_set.definitions)
    definitions = [trace_set.get_definition(name) for name in wanted]
    candidates = tuple(adapters)
    made = {definition.name: _first(candidates, definition, author) for definition in definitions}
    solutions = [solution for solution in made.values() if solution is not None]
    there = set(trace_set.solution_names())
    return Baselines(
        tuple(solution for solution in solutions if solution.name not in there),
        tuple(name for name, solution in made.items() if solution is None),
        tuple(solution.name for solution in solutions if solution.name in there),
    )


def _first(adapters: Iterable[Adapter], definition: Definition, author: str) -> Solution | None:
    found = (baseline_solution(adapter, definition, author) for adapter in adapters)
    return next((solution for solution in found if solution is not None), None)
