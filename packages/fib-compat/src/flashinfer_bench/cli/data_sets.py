"""Several data sets as one, in memory and on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from fib_schema import Definition, DuplicateName, Solution, Trace, TraceSet, format_json

__all__ = ["export_traceset", "load_traces", "merge_tracesets"]

R = TypeVar("R")


def load_traces(paths: Sequence[str | os.PathLike[str]]) -> TraceSet:
    """The data set of a folder, or several merged in memory.

    Raises:
        DataSetNotFound: There is no such folder.
        DuplicateName: Two of them contradict each other.
    """
    sets = [TraceSet.from_path(path) for path in paths]
    return sets[0] if len(sets) == 1 else merge_tracesets(sets)


def merge_tracesets(trace_sets: Iterable[TraceSet]) -> TraceSet:
    """One data set, in memory, with all that several have; what they share is in it once.

    Raises:
        DuplicateName: Two definitions or two solutions share a name and differ.
    """
    definitions: dict[str, Definition] = {}
    solutions: dict[str, Solution] = {}
    workloads: dict[str, Trace] = {}
    traces: dict[str, Trace] = {}
    for trace_set in trace_sets:
        place = str(trace_set.root or "a set in memory")
        for name, definition in trace_set.definitions.items():
            _check_same("definition", definitions.setdefault(name, definition), definition, place)
        for solution in _members(trace_set.solutions):
            _check_same("solution", solutions.setdefault(solution.name, solution), solution, place)
        workloads.update((format_json(trace), trace) for trace in _members(trace_set.workloads))
        traces.update((format_json(trace), trace) for trace in _members(trace_set.traces))
    return TraceSet(
        None,
        definitions,
        {name: [s for s in solutions.values() if s.definition == name] for name in definitions},
        _by_definition(workloads.values()),
        _by_definition(traces.values()),
    )


def export_traceset(trace_set: TraceSet, output_dir: str | os.PathLike[str]) -> None:
    """Write a data set to a folder; tensors that workloads refer to are not copied (``report merge`` does).

    Raises:
        DuplicateName: The folder holds one of its definitions or solutions already.
        OSError: It could not be written.
    """
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    target = TraceSet.from_path(output_dir)
    target.add_definitions(trace_set.definitions.values())
    target.add_solutions(_members(trace_set.solutions))
    target.add_traces(_members(trace_set.workloads))
    target.add_traces(_members(trace_set.traces))


def _members(groups: Mapping[str, list[R]]) -> Iterator[R]:
    return (member for group in groups.values() for member in group)


def _check_same(kind: str, known: Definition | Solution, other: Definition | Solution, place: str) -> None:
    if known != other:
        raise DuplicateName(kind, other.name, "that of a set before", f"that of {place}, which differs")


def _by_definition(traces: Iterable[Trace]) -> dict[str, list[Trace]]:
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.definition, []).append(trace)
    return groups
