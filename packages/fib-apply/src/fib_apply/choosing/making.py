"""Makes the content of a table from a data set, on disk or in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
from fib_schema import Definition, Solution, Trace, TraceSet

from ..config import ApplyConfigRegistry
from ..key import ApplyKeyFactory
from .lines import TraceReader
from .listing import Listing, digest_of, stem
from .records import Stored, read_records
from .rules import Choices, SolutionFacts, choose
from .segments import Entry, Header, Place, checksum, encode_choices

_IN_MEMORY = Place(b"", b"")


@attrs.define
class _Contents:
    """What becomes of the definitions, one by one."""

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
        """Choose for one definition; a second time replaces the first."""
        settings = config.get(definition.name)
        choices: Mapping[str, Choices] = {}
        try:
            builder = ApplyKeyFactory.specialize(definition)
        except Exception as error:  # noqa: BLE001 a key builder may be somebody else's
            self.problems.append(f"{definition.name}: its key builder raised {type(error).__name__}: {error}")
        else:
            selection = choose(definition, traces, facts, settings, builder)
            self.problems += selection.problems
            choices = selection.choices
        try:
            segment = encode_choices(choices)
        except ValueError as error:  # a name of hardware that is no text in UTF-8, say
            self.problems.append(f"{definition.name}: what was chosen cannot be kept: {error}")
            choices, segment = {}, encode_choices({})
        self.entries[definition.name] = (place, segment, _wins(choices))

    def finished(self, digest: str | None, solutions: Mapping[str, Place]) -> tuple[Header, bytes]:
        """The header and the segments; without a digest it is that of the segments."""
        placed: dict[str, Entry] = {}
        offset = 0
        for name, (place, segment, wins) in self.entries.items():
            placed[name] = Entry(place, offset, len(segment), checksum(segment), wins)
            offset += len(segment)
        segments = b"".join([segment for _, segment, _ in self.entries.values()])
        problems = [problem.encode("utf-8", "backslashreplace").decode() for problem in dict.fromkeys(self.problems)]
        return Header(digest or digest_of([*placed, segments]).hex(), problems, placed, dict(solutions)), segments


def _wins(choices: Mapping[str, Choices]) -> dict[str, dict[str, int]]:
    """For how many keys each solution is the first, or the first that needs no plan."""
    counts: dict[str, dict[str, int]] = {}
    for hardware, of_hardware in choices.items():
        of_solution = counts.setdefault(hardware, {})
        for ranking in of_hardware.by_key.values():
            plain = ranking.plain
            for name in {c.solution for c in (*ranking.candidates[:1], plain) if c is not None}:
                of_solution[name] = of_solution.get(name, 0) + 1
    return counts


def build_from_files(listing: Listing, config: ApplyConfigRegistry, digest: str) -> tuple[Header, bytes]:
    """The content for a data set on disk; what is bad in it is reported in the header."""
    contents = _Contents(list(listing.problems))
    with _paused_gc():
        definitions = read_records(listing.files["definitions"], Definition, contents.problems)
        solutions = read_records(listing.files["solutions"], Solution, contents.problems)
        facts = _facts_by_definition(solutions)
        traces = _TracesByDefinition(listing.files["traces"], definitions)
        while name := traces.next_name():
            stored = definitions[name]
            contents.add(stored.record, traces.of(name), facts.get(name, []), config, _place(listing, stored))
        contents.problems += traces.problems
        return contents.finished(digest, {name: _place(listing, stored) for name, stored in solutions.items()})


def build_from_memory(trace_set: TraceSet, config: ApplyConfigRegistry) -> tuple[Header, bytes]:
    """The content for a data set in memory."""
    contents = _Contents()
    with _paused_gc():
        for name in trace_set.definitions:
            traces = trace_set.traces.get(name, [])
            facts = [SolutionFacts.from_solution(solution) for solution in trace_set.solutions.get(name, [])]
            contents.add(trace_set.definitions[name], traces, facts, config)
    return contents.finished(None, {})


def _facts_by_definition(solutions: Mapping[str, Stored[Solution]]) -> dict[str, list[SolutionFacts]]:
    facts: dict[str, list[SolutionFacts]] = {}
    for stored in solutions.values():
        facts.setdefault(stored.record.definition, []).append(SolutionFacts.from_solution(stored.record))
    return facts


def _place(listing: Listing, stored: Stored[Any]) -> Place:
    return Place(listing.relative(stored.path).encode("utf-8", "surrogateescape"), stored.digest)


class _TracesByDefinition:
    """The traces of one definition after the other, so that not all are in memory at once.

    A file belongs to the definition that its stem names. Records of another definition, which
    no writer of ours makes, are kept for it; if its turn was before, it gets another.
    """

    def __init__(self, paths: list[str], definitions: Mapping[str, object]) -> None:
        self._reader = TraceReader()
        self._paths: dict[str, list[str]] = {name: [] for name in definitions}
        self._strays: dict[str, list[Trace]] = {}
        self._read: set[str] = set()
        self._pending: dict[str, None] = dict.fromkeys(sorted(definitions, reverse=True))
        for path in paths:
            if stem(path) in definitions:
                self._paths[stem(path)].append(path)
            else:
                self._keep_strays(list(self._reader.read(path)), "")

    @property
    def problems(self) -> list[str]:
        return list(dict.fromkeys(self._reader.problems))

    def next_name(self) -> str | None:
        """The definition whose turn it is."""
        return self._pending.popitem()[0] if self._pending else None

    def of(self, name: str) -> list[Trace]:
        """Its traces."""
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
    """Records have no cycles, and looking for some takes most of the time of making many."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
