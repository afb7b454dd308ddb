"""Merging of data sets in memory, and export of one to a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from fib_schema import Definition, DuplicateName, Solution, Trace, TraceSet, format_json

__all__ = ["export_traceset", "load_traces", "merge_tracesets"]

R = TypeVar("R")


def load_traces(paths: Sequence[str | os.PathLike[str]]) -> TraceSet:
    """Load a data set, or several merged in memory.

    Raises:
        DataSetNotFound: A folder does not exist.
        DuplicateName: Two definitions or two solutions share a name and differ.
    """
    sets = [TraceSet.from_path(path) for path in paths]
    return sets[0] if len(sets) == 1 else merge_tracesets(sets)


def merge_tracesets(trace_sets: Iterable[TraceSet]) -> TraceSet:
    """Merge data sets in memory; records that several have are kept once.

    Raises:
        DuplicateName: Two definitions or two solutions share a name and differ.
    """
    definitions: dict[str, Definition] = {}
    solutions: dict[str, Solution] = {}
    workloads: dict[str, Trace] = {}
    traces: dict[str, Trace] = {}
    for trace_set in trace_sets:
        source = str(trace_set.root or "a set in memory")
        for name, definition in trace_set.definitions.items():
            _check_same("definition", definitions.setdefault(name, definition), definition, source)
        for solution in _members(trace_set.solutions):
            _check_same("solution", solutions.setdefault(solution.name, solution), solution, source)
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
    """Write a data set to a folder, without the tensors of its workloads (``report merge`` copies them).

    Raises:
        DuplicateName: The folder already has one of its definitions or solutions.
        OSError: The folder cannot be written.
    """
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    target = TraceSet.from_path(output_dir)
    target.add_definitions(trace_set.definitions.values())
    target.add_solutions(_members(trace_set.solutions))
    target.add_traces(_members(trace_set.workloads))
    target.add_traces(_members(trace_set.traces))


def _members(groups: Mapping[str, list[R]]) -> Iterator[R]:
    return (member for group in groups.values() for member in group)


def _check_same(kind: str, known: Definition | Solution, other: Definition | Solution, source: str) -> None:
    if known != other:
        raise DuplicateName(kind, other.name, "that of an earlier data set", f"that of {source}, which differs")


def _by_definition(traces: Iterable[Trace]) -> dict[str, list[Trace]]:
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.definition, []).append(trace)
    return groups
