"""ApplyTable: for every definition, hardware and key the solutions that may serve it, in order.

A table is made once from a data set and its settings, and then kept below ``FIB_CACHE_PATH``. It
is used again as long as no file of the data set has another size, time of change or inode. The
choices of a definition are decoded when they are asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import attrs
from fib_schema import Definition, Solution, TraceSet, UnknownName, get_fib_cache_path

from ..config import ApplyConfigRegistry, Settings, to_registry
from ..hardware import hardware_at_hand
from ..key import ApplyKey
from ..log import logger
from .cache import CachedContent
from .making import build_from_memory
from .records import read_unchanged
from .rules import Choices
from .segments import Content, NotUsable, Place, decode_choices

T = TypeVar("T")

_NO_CHOICES: Mapping[str, Choices] = MappingProxyType({})


class ApplyTable:
    """What was chosen for the definitions of a data set, on every hardware that its traces name.

    Made by `load_or_build`. What a set on disk that was opened before was given in memory alone is not seen.
    """

    def __init__(self, content: Content, source: TraceSet | CachedContent, config: ApplyConfigRegistry) -> None:
        self._header, self._segments = content
        self._source = source
        self._config = config
        self._choices: dict[str, Mapping[str, Choices]] = {}

    @classmethod
    def load_or_build(
        cls,
        trace_set: TraceSet | str | os.PathLike[str],
        config: Settings = None,
        *,
        cache_root: str | os.PathLike[str] | None = None,
    ) -> ApplyTable:
        """The table of a data set, from the cache if that still holds.

        Args:
            trace_set: The data set, or its root, which need not be opened for this. One in memory is never cached.
            config: Settings for all definitions or by definition; None means the defaults.
            cache_root: Where caches are; None means `fib_schema.get_fib_cache_path`.

        Raises:
            InvalidSetting: `config` is none.
            DataSetNotFound: There is no such directory.
        """
        registry = to_registry(config)
        root = trace_set.root if isinstance(trace_set, TraceSet) else Path(trace_set)
        if isinstance(trace_set, TraceSet) and root is None:
            return cls(build_from_memory(trace_set, registry), trace_set, registry)
        assert root is not None  # or it was in memory
        source = CachedContent(root.absolute(), registry, get_fib_cache_path() if cache_root is None else cache_root)
        return cls(source.load_or_build(), source, registry)

    @property
    def digest(self) -> str:
        """Equal for tables of the same data, settings and key builders."""
        return self._header.digest

    @property
    def problems(self) -> tuple[str, ...]:
        """What was found wrong in the data set, and was left out."""
        return tuple(self._header.problems)

    @property
    def definitions(self) -> tuple[str, ...]:
        """The names of the definitions."""
        return tuple(self._header.entries)

    def choices(self, definition: str) -> Mapping[str, Choices]:
        """By hardware; empty for a definition that is unknown or has no traces."""
        if definition not in self._choices:
            if definition not in self._header.entries:
                return _NO_CHOICES
            self._choices[definition] = MappingProxyType(self._decoded(definition))
        return self._choices[definition]

    def _decoded(self, definition: str) -> dict[str, Choices]:
        try:
            return self._decoded_once(definition)
        except NotUsable as error:
            logger.warning("the cached table is damaged (%s), and is made anew", error)
        assert isinstance(self._source, CachedContent)  # what was never in a file does not get damaged
        self._header, self._segments = self._source.build()
        return self._decoded_once(definition) if definition in self._header.entries else {}

    def _decoded_once(self, definition: str) -> dict[str, Choices]:
        entry = self._header.entries[definition]
        return decode_choices(self._segments[entry.offset : entry.offset + entry.length], entry.checksum)

    def winners(self, hardware_names: str | Sequence[str]) -> list[tuple[str, str, int]]:
        """Definition, solution and for how many keys it is needed, most keys first.

        It is needed where it is first, and where it is the first that needs no plan. Nothing is decoded for this.

        Args:
            hardware_names: Of these the first with traces counts, for each definition.
        """
        names = (hardware_names,) if isinstance(hardware_names, str) else tuple(hardware_names)
        found = [
            (definition, solution, keys)
            for definition in self._header.entries
            for solution, keys in self._wins(definition, names).items()
        ]
        return sorted(found, key=lambda winner: (-winner[2], winner[0], winner[1]))

    def _wins(self, definition: str, names: Sequence[str]) -> Mapping[str, int]:
        wins = self._header.entries[definition].wins
        return next((wins[name] for name in names if name in wins), {})

    def for_hardware(self, name: str, others: Sequence[str] | None = None) -> HardwareView:
        """The table as seen from one hardware.

        Args:
            name: The hardware, as traces state it.
            others: Whose traces count where there are none of it; None means each definition's `other_hardware`.
        """
        return HardwareView(self, name, None if others is None else tuple(others))

    @property
    def index(self) -> Mapping[str, Mapping[ApplyKey, str]]:
        """By definition and key, the solution for plain calls on this machine; decodes everything."""
        return self._of_machine(lambda view: view.index)

    @property
    def def_best(self) -> Mapping[str, str]:
        """By definition, the solution for this machine that is best over all keys; decodes everything."""
        return self._of_machine(lambda view: view.def_best)

    def match_solution(self, definition: str, key: ApplyKey) -> str | None:
        """The solution for a recorded key on this machine; None on a miss."""
        views = map(self.for_hardware, hardware_at_hand())
        return next((found for view in views if (found := view.match_solution(definition, key))), None)

    def _of_machine(self, read: Callable[[HardwareView], Mapping[str, T]]) -> dict[str, T]:
        """What is read from the view of each device of this machine; the first that knows a definition counts."""
        views = [self.for_hardware(name) for name in reversed(hardware_at_hand())]
        return {definition: value for view in views for definition, value in read(view).items()}

    def hardware_order(self, name: str, others: Sequence[str] | None, definition: str) -> tuple[str, ...]:
        """A hardware and those that stand in for it, for one definition."""
        return (name, *(self._config.get(definition).other_hardware if others is None else others))

    def definition(self, name: str) -> Definition:
        """A definition; its file alone is read.

        Raises:
            UnknownName: There is none.
            InvalidRecord: Its file has changed since the table was made, or cannot be read any more.
        """
        if isinstance(self._source, TraceSet):
            return self._source.get_definition(name)
        return read_unchanged(self.definition_file(name), Definition, self._definition_place(name).digest)

    def solution(self, name: str) -> Solution:
        """A solution; its file alone is read.

        Raises:
            UnknownName: There is none.
            InvalidRecord: Its file has changed since the table was made, or cannot be read any more.
        """
        if isinstance(self._source, CachedContent):
            return read_unchanged(self.solution_file(name), Solution, self._solution_place(name).digest)
        found = self._source.get_solution(name)
        if found is None:
            raise UnknownName("solution", name, self._source.solution_names())
        return found

    def definition_file(self, name: str) -> Path:
        """Where a definition is.

        Raises:
            UnknownName: There is none on disk.
        """
        return self._path(self._definition_place(name), "definition", name)

    def solution_file(self, name: str) -> Path:
        """Where a solution is.

        Raises:
            UnknownName: There is none on disk.
        """
        return self._path(self._solution_place(name), "solution", name)

    def _definition_place(self, name: str) -> Place:
        if name not in self._header.entries:
            raise UnknownName("definition", name, self.definitions)
        return self._header.entries[name].place

    def _solution_place(self, name: str) -> Place:
        if name not in self._header.solutions:
            raise UnknownName("solution", name, tuple(self._header.solutions))
        return self._header.solutions[name]

    def _path(self, place: Place, kind: str, name: str) -> Path:
        if not isinstance(self._source, CachedContent):
            raise UnknownName(f"{kind} on disk", name, ())
        return self._source.root / os.fsdecode(place.path)


@attrs.frozen
class HardwareView:
    """A table as seen from one hardware: solutions that plain calls can use, without those that need a plan."""

    table: ApplyTable = attrs.field(repr=False)
    name: str
    others: tuple[str, ...] | None = None

    def choices(self, definition: str) -> Choices | None:
        """Those that count here: of the hardware itself, else of the first stand-in with traces."""
        found = self.table.choices(definition)
        order = self.table.hardware_order(self.name, self.others, definition)
        return next((found[name] for name in order if name in found), None)

    def match_solution(self, definition: str, key: ApplyKey) -> str | None:
        """The solution for a recorded key; None on a miss."""
        choices = self.choices(definition)
        ranking = None if choices is None else choices.by_key.get(key)
        return ranking.plain.solution if ranking is not None and ranking.plain is not None else None

    @property
    def index(self) -> Mapping[str, Mapping[ApplyKey, str]]:
        """By definition and key; decodes each definition that is looked at."""
        return _ByDefinition(self)

    @property
    def def_best(self) -> Mapping[str, str]:
        """By definition the solution that is best over all keys; decodes all definitions."""
        found = {}
        for definition in self.table.definitions:
            choices = self.choices(definition)
            if choices is not None and choices.best is not None and choices.best.plain is not None:
                found[definition] = choices.best.plain.solution
        return found

    def winners(self) -> list[tuple[str, str, int]]:
        """As `ApplyTable.winners`, with each definition's own stand-ins."""
        orders: dict[tuple[str, ...], set[str]] = {}
        for definition in self.table.definitions:
            orders.setdefault(self.table.hardware_order(self.name, self.others, definition), set()).add(definition)
        found = [won for order, names in orders.items() for won in self.table.winners(order) if won[0] in names]
        return sorted(found, key=lambda winner: (-winner[2], winner[0], winner[1]))


@attrs.frozen(eq=False)
class _ByDefinition(Mapping[str, Mapping[ApplyKey, str]]):
    """The solutions by key of each definition, decoded when they are asked for."""

    _view: HardwareView

    def __getitem__(self, definition: str) -> Mapping[ApplyKey, str]:
        choices = self._view.choices(definition)
        if choices is None:
            raise KeyError(definition)
        rankings = choices.by_key.items()
        return {key: ranking.plain.solution for key, ranking in rankings if ranking.plain is not None}

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._view.table.definitions if self._view.choices(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)
