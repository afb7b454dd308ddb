"""Table builder: makes the content of a table from a data set on disk or in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from fib_schema import Definition, Solution, Trace, TraceSet
from fib_schema.display import escape_line

from ..config import ApplyConfigRegistry
from ..key import ApplyKeyFactory
from .dataset_files import DatasetFiles, digest_of
from .rankings import HardwareRankings
from .records import Stored, read_records
from .rules import SolutionFacts, select
from .table_format import Entry, Header, Place, checksum, encode_rankings
from .trace_reader import TraceReader

_IN_MEMORY = Place(b"", b"")


@attrs.define
class _ContentBuilder:
    """Builds the content definition by definition."""

    problems: list[str] = attrs.field(factory=list)
    entries: dict[str, tuple[Place, bytes, dict[str, dict[str, int]]]] = attrs.field(factory=dict)

    def add(
        self,
        definition: Definition,
        traces: list[Trace],
        facts: list[SolutionFacts],
        config: ApplyConfigRegistry,
        place: Place = _IN_MEMORY,
    ) -> None:
        """Select solutions for one definition; a second call for it replaces the first."""
        settings = config.get(definition.name)
        rankings: Mapping[str, HardwareRankings] = {}
        try:
            builder = ApplyKeyFactory.specialize(definition)
        except Exception as error:  # noqa: BLE001 a registered key builder may raise anything
            self.problems.append(f"{definition.name}: its key builder raised {type(error).__name__}: {error}")
        else:
            selection = select(definition, traces, facts, settings, builder)
            self.problems += selection.problems
            rankings = selection.rankings
        try:
            segment = encode_rankings(rankings)
        except ValueError as error:  # e.g. a hardware name that UTF-8 cannot encode
            self.problems.append(f"{definition.name}: the rankings cannot be encoded: {error}")
            rankings, segment = {}, encode_rankings({})
        self.entries[definition.name] = (place, segment, _wins(rankings))

    def block(self, definition: str, reason: str) -> None:
        """Select nothing for a definition, whatever was selected before."""
        if definition in self.entries:
            self.entries[definition] = (self.entries[definition][0], encode_rankings({}), {})
            self.problems.append(f"{definition}: not routed: {reason}")

    def finished(self, digest: str | None, solutions: Mapping[str, Place]) -> tuple[Header, bytes]:
        """The header and the segments. Without a digest, that of the segments is used."""
        placed: dict[str, Entry] = {}
        offset = 0
        for name, (place, segment, wins) in self.entries.items():
            placed[name] = Entry(place, offset, len(segment), checksum(segment), wins)
            offset += len(segment)
        segments = b"".join([segment for _, segment, _ in self.entries.values()])
        problems = [escape_line(problem) for problem in dict.fromkeys(self.problems)]
        return Header(digest or digest_of([*placed, segments]).hex(), problems, placed, dict(solutions)), segments


def _wins(rankings: Mapping[str, HardwareRankings]) -> dict[str, dict[str, int]]:
    """By hardware and solution, the number of keys where it is the first, or the first that needs no plan."""
    counts: dict[str, dict[str, int]] = {}
    for hardware, of_hardware in rankings.items():
        of_solution = counts.setdefault(hardware, {})
        for ranking in of_hardware.by_key.values():
            plain = ranking.plain
            first = () if ranking.is_padded else ranking.candidates[:1]  # no plan serves padded indices
            for name in {c.solution for c in (*first, plain) if c is not None}:
                of_solution[name] = of_solution.get(name, 0) + 1
    return counts


def build_from_files(files: DatasetFiles, config: ApplyConfigRegistry, digest: str) -> tuple[Header, bytes]:
    """Build the content for a data set on disk. Problems go into the header."""
    builder = _ContentBuilder(list(files.problems))
    with _paused_gc():
        definitions = read_records(files.files["definitions"], Definition, builder.problems, files.read)
        solutions = read_records(files.files["solutions"], Solution, builder.problems, files.read)
        facts = _facts_by_definition(solutions)
        traces = _TracesByDefinition(files, definitions)
        while name := traces.next_name():
            stored = definitions[name]
            builder.add(stored.record, traces.of(name), facts.get(name, []), config, _place(files, stored))
        builder.problems += traces.problems
        for name, reason in files.blocked.items():
            builder.block(name, reason)
        return builder.finished(digest, {name: _place(files, stored) for name, stored in solutions.items()})


def build_from_memory(trace_set: TraceSet, config: ApplyConfigRegistry) -> tuple[Header, bytes]:
    """Build the content for a data set in memory."""
    builder = _ContentBuilder()
    with _paused_gc():
        for name in trace_set.definitions:
            traces = trace_set.traces.get(name, [])
            facts = [SolutionFacts.from_solution(solution) for solution in trace_set.solutions.get(name, [])]
            builder.add(trace_set.definitions[name], traces, facts, config)
    return builder.finished(None, {})


def _facts_by_definition(solutions: Mapping[str, Stored[Solution]]) -> dict[str, list[SolutionFacts]]:
    facts: dict[str, list[SolutionFacts]] = {}
    for stored in solutions.values():
        facts.setdefault(stored.record.definition, []).append(SolutionFacts.from_solution(stored.record))
    return facts


def _place(files: DatasetFiles, stored: Stored[Any]) -> Place:
    return Place(files.relative(stored.path).encode("utf-8", "surrogateescape"), stored.digest)


class _TracesByDefinition:
    """The traces of one definition at a time, so that not all are in memory at once.

    A file belongs to the definition that its stem names. Records of another definition, which only foreign tools
    write there, are kept for it; a definition that was processed before is processed again.
    """

    def __init__(self, files: DatasetFiles, definitions: Mapping[str, object]) -> None:
        self._reader = TraceReader(files.read)
        self._paths: dict[str, list[str]] = {name: [] for name in definitions}
        self._strays: dict[str, list[Trace]] = {}
        self._read: set[str] = set()
        self._pending: dict[str, None] = dict.fromkeys(sorted(definitions, reverse=True))
        for path in files.files["traces"]:
            if (name := Path(path).stem) in definitions:
                self._paths[name].append(path)
            else:
                self._keep_strays(list(self._reader.read(path)), "")

    @property
    def problems(self) -> list[str]:
        return list(dict.fromkeys(self._reader.problems))

    def next_name(self) -> str | None:
        """The next definition to process; None at the end."""
        return self._pending.popitem()[0] if self._pending else None

    def of(self, name: str) -> list[Trace]:
        """The traces of a definition."""
        found = [trace for path in self._paths[name] for trace in self._reader.read(path)]
        if name not in self._read:
            self._read.add(name)
            self._keep_strays(found, name)
        return self._strays.get(name, []) + found

    def _keep_strays(self, traces: list[Trace], name: str) -> None:
        for trace in traces:
            other = trace.definition
            if other != name and other in self._paths:
                self._strays.setdefault(other, []).append(trace)
                self._pending[other] = None


@contextmanager
def _paused_gc() -> Iterator[None]:
    """Pause the garbage collector: records have no cycles, and collections take most of the time of making many."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
