"""Baselines: solutions that call the library itself, against which speedups are quoted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import attrs
from fib_apply.selection.table import local_hardware
from fib_schema import BuildSpec, Definition, FibError, Solution, SourceFile, TraceSet

from .adapter import Adapter

if TYPE_CHECKING:
    from fib_apply.routing.dispatcher import Dispatcher

AUTHOR = "flashinfer"


def baseline_name(definition: Definition) -> str:
    """The name of a definition's baseline."""
    return f"flashinfer_{definition.name}"


def baseline_solutions(adapter: Adapter, definition: Definition) -> tuple[Solution, ...]:
    """Solutions that call the library: the one with its default settings, and those with other settings of engines.

    ``setup`` calls the library's plan, if it has one. The outputs are returned or passed, as the library does it.
    Empty if the adapter does not support the definition.
    """
    if definition.op_type not in adapter.op_types:
        return ()
    own = (family.baseline for family in adapter.families if family.define(definition.name) is not None)
    makers = {} if adapter.baseline is None else {"": adapter.baseline, **adapter.other_baselines}
    sources = {suffix: make(definition) for suffix, make in makers.items()} or {"": next(own, None)}
    return tuple(_solution(adapter, definition, suffix, source) for suffix, source in sources.items() if source)


def _solution(adapter: Adapter, definition: Definition, suffix: str, source: str) -> Solution:
    """A baseline; with other settings it has an author of its own, because rankings need one solution of an author."""
    name, author, package = baseline_name(definition), AUTHOR, "flashinfer-python"
    if adapter.engine is not None:
        author = package = adapter.engine.distribution
        name = f"{author}_{definition.name}"
    if suffix:
        name, author = f"{name}_{suffix}", f"{author}-{suffix.replace('_', '-')}"
    signature = next(line for line in source.splitlines() if line.startswith("def run("))
    spec = BuildSpec(
        "python",
        ["cuda"],
        "main.py::run",
        dependencies=[package],
        destination_passing_style=all(f" {output}" in signature for output in definition.outputs),
    )
    return Solution(
        name,
        definition.name,
        author,
        spec,
        [SourceFile("main.py", source)],
        description=f"Calls the library itself, as the adapter {adapter.name!r} of fib-integrations would.",
    )


def matching_baselines(adapter: Adapter, runtime: Any, definition: Definition) -> frozenset[str]:
    """The solutions in a runtime's data set that are the adapter's own baselines.

    Where one of them is the best solution, the original function is called: it is planned already, and writes in place.
    The engine has chosen its settings, so a solution must be faster than the baselines of all settings.
    """
    return frozenset(ours.name for ours in baseline_solutions(adapter, definition) if _is_in(runtime, ours))


def _is_in(runtime: Any, ours: Solution) -> bool:
    try:
        theirs = runtime.table.solution(ours.name)
    except FibError:  # the data set has no solution of this name
        return False
    return bool(theirs.hash() == ours.hash())


def may_win(dispatcher: Dispatcher, baselines: frozenset[str]) -> bool:
    """Whether a solution may serve calls without a plan on this machine: it is no baseline, nor slower than one."""
    config, known = dispatcher.config, dispatcher.pool.rankings
    on_hardware = [known[name] for name in local_hardware() if name in known]
    rankings = [each for one in on_hardware for each in (*one.by_key.values(), one.best) if each is not None]
    for ranking in (mode for each in rankings for mode in (each, each.of_captured())):
        ours = [candidate for candidate in ranking.candidates if candidate.solution in baselines]
        for found in ranking.plain_candidates:
            is_fast = all(found.is_faster_than_equivalent(one, config.margin) for one in ours)
            if found.solution not in baselines and (is_fast or not config.require_speedup):
                return True
    return False


@attrs.frozen
class Baselines:
    """The baselines of a data set's definitions."""

    solutions: tuple[Solution, ...]
    unsupported: tuple[str, ...]
    """Names of definitions without a baseline."""
    existing: tuple[str, ...] = ()
    """Names of solutions that the data set already has."""


def make_baselines(trace_set: TraceSet, adapters: Iterable[Adapter], *, names: Iterable[str] = ()) -> Baselines:
    """The baselines of a data set's definitions."""
    wanted = list(names) or list(trace_set.definitions)
    definitions = [trace_set.get_definition(name) for name in wanted]
    candidates = sorted(adapters, key=lambda adapter: not adapter.families)  # an engine's own ones come first
    made = {definition.name: _first(candidates, definition) for definition in definitions}
    solutions = [solution for several in made.values() for solution in several]
    existing = set(trace_set.solution_names())
    return Baselines(
        tuple(solution for solution in solutions if solution.name not in existing),
        tuple(name for name, several in made.items() if not several),
        tuple(solution.name for solution in solutions if solution.name in existing),
    )


def _first(adapters: Iterable[Adapter], definition: Definition) -> tuple[Solution, ...]:
    found = (baseline_solutions(adapter, definition) for adapter in adapters)
    return next((several for several in found if several), ())
