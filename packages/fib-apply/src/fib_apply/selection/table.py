"""Apply table: for each definition, hardware and key, the ranked solutions that may serve it.

A table is made once from a data set and its settings, and cached below ``FIB_CACHE_PATH``. The cache is valid while
no file of the data set changes its size, modification time or inode. The rankings of a definition are decoded on
first access.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import attrs
from fib_schema import Definition, FibError, Solution, TraceSet, UnknownName, get_fib_cache_path

from ..config import ApplyConfig, ApplyConfigRegistry, Settings, to_registry
from ..hardware import local_hardware
from ..key import ApplyKey
from ..log import logger
from .dataset_files import digest_of
from .rankings import HardwareRankings
from .table_builder import build_from_memory
from .table_cache import TableCache
from .table_format import Content, InvalidTable, decode_rankings

T = TypeVar("T")

_NO_RANKINGS: Mapping[str, HardwareRankings] = MappingProxyType({})


class ApplyTable:
    """The selected solutions of a data set, for every hardware that its traces name; made by `load_or_build`."""

    def __init__(self, content: Content, source: TraceSet | TableCache, config: ApplyConfigRegistry) -> None:
        self._header, self._segments = content
        self._source = source
        self._config = config
        self._rankings: dict[str, Mapping[str, HardwareRankings]] = {}

    @classmethod
    def load_or_build(
        cls,
        trace_set: TraceSet | str | os.PathLike[str],
        config: Settings = None,
        *,
        cache_root: str | os.PathLike[str] | None = None,
    ) -> ApplyTable:
        """Load the table of a data set from the cache, or build it.

        Args:
            trace_set: The data set or its root. Of an opened set the files are read, not the objects in memory,
                unless the set has no root; then nothing is cached.
            config: Settings for all definitions or by definition; None means the defaults.
            cache_root: The root of caches; None means `fib_schema.get_fib_cache_path`.

        Raises:
            InvalidSetting: `config` is neither settings nor None.
            DataSetNotFound: The root is not a directory.
            NotSigned: A signature is required, and there is no valid one (a ValueError).
        """
        registry = to_registry(config)
        signers = registry.required_signers()
        root = trace_set.root if isinstance(trace_set, TraceSet) else Path(trace_set)
        if isinstance(trace_set, TraceSet) and root is None:
            if signers is not None:
                from fib_schema.signing import NotSigned

                raise NotSigned("in memory", "only files are signed; pass the folder of the set")
            return cls(build_from_memory(trace_set, registry), trace_set, registry)
        assert root is not None  # checked above
        cache = get_fib_cache_path() if cache_root is None else cache_root
        source = TableCache(root.absolute(), registry, cache, signers)
        return cls(source.load_or_build(), source, registry)

    @property
    def digest(self) -> str:
        """Equal for tables of the same data, settings and key builders."""
        return self._header.digest

    def current_digest(self) -> str:
        """The digest that the table would have if it were made now; differs from `digest` when files have changed.

        Raises:
            DataSetNotFound: The data set is gone.
            NotSigned: It is no longer signed as required.
        """
        return self.digest if isinstance(self._source, TraceSet) else self._source.current_digest()

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems of the data set; each left something out."""
        return tuple(self._header.problems)

    @property
    def definitions(self) -> tuple[str, ...]:
        """The names of the definitions."""
        return tuple(self._header.entries)

    def rankings(self, definition: str) -> Mapping[str, HardwareRankings]:
        """The rankings of a definition by hardware; empty if it is unknown or has no traces."""
        if definition not in self._rankings:
            if definition not in self._header.entries:
                return _NO_RANKINGS
            self._rankings[definition] = MappingProxyType(self._decoded(definition))
        return self._rankings[definition]

    def _decoded(self, definition: str) -> dict[str, HardwareRankings]:
        try:
            return self._decoded_once(definition)
        except InvalidTable as error:
            logger.warning("the cached table is damaged (%s) and is rebuilt", error)
        assert isinstance(self._source, TableCache)  # a table in memory cannot be damaged
        self._header, self._segments = self._source.build()
        return self._decoded_once(definition) if definition in self._header.entries else {}

    def _decoded_once(self, definition: str) -> dict[str, HardwareRankings]:
        entry = self._header.entries[definition]
        return decode_rankings(self._segments[entry.offset : entry.offset + entry.length], entry.checksum)

    def for_hardware(self, name: str) -> HardwareView:
        """The view of the table from one hardware, named as in traces."""
        return HardwareView(self, name)

    @property
    def index(self) -> Mapping[str, Mapping[ApplyKey, str]]:
        """By definition and key, the solution for plain calls on this machine. Decodes the whole table."""
        return self._on_local_hardware(lambda view: view.index)

    @property
    def def_best(self) -> Mapping[str, str]:
        """By definition, the best solution over all keys on this machine. Decodes the whole table."""
        return self._on_local_hardware(lambda view: view.def_best)

    def match_solution(self, definition: str, key: ApplyKey) -> str | None:
        """The solution for a recorded key on this machine; None on a miss."""
        views = map(self.for_hardware, local_hardware())
        return next((found for view in views if (found := view.match_solution(definition, key))), None)

    def _on_local_hardware(self, read: Callable[[HardwareView], Mapping[str, T]]) -> dict[str, T]:
        """Merge the views of this machine's devices; the first device that knows a definition counts."""
        views = [self.for_hardware(name) for name in reversed(local_hardware())]
        return {definition: value for view in views for definition, value in read(view).items()}

    def hardware_order(self, name: str, definition: str) -> tuple[str, ...]:
        """A hardware and its substitutes, in the order in which their traces count for a definition."""
        return (name, *self._config.get(definition).other_hardware)

    def wins(self, definition: str, hardware: Sequence[str]) -> Mapping[str, int]:
        """By solution, the number of keys that it wins on the first hardware with traces. Decodes nothing."""
        wins = self._header.entries[definition].wins
        return next((wins[name] for name in hardware if name in wins), {})

    def settings(self, definition: str) -> ApplyConfig:
        """The settings of a definition."""
        return self._config.get(definition)

    def baseline(self, definition: str) -> Solution | None:
        """The solution of the setting `ApplyConfig.baseline`; None if the definition has none of this name."""
        name = self.settings(definition).baseline
        try:
            found = None if name is None else self.solution(name)
        except FibError:  # unknown or changed; `setting_problems` names it
            return None
        return found if found is not None and found.definition == definition else None

    def digest_of_definition(self, name: str) -> bytes:
        """A digest of a definition's content; of its file, if it has one."""
        return self._header.entries[name].place.digest or digest_of([repr(attrs.asdict(self.definition(name)))])

    def digest_of_solution(self, name: str) -> bytes:
        """A digest of a solution's content; of its file, if it has one."""
        place = self._header.solutions.get(name)
        return self.solution(name).hash().encode() if place is None else place.digest

    def definition(self, name: str) -> Definition:
        """Load a definition; reads its file only.

        Raises:
            UnknownName: There is no such definition.
            InvalidRecord: Its file has changed since the table was made, or cannot be read any more.
        """
        if isinstance(self._source, TraceSet):
            return self._source.get_definition(name)
        if name not in self._header.entries:
            raise UnknownName("definition", name, self.definitions)
        return self._source.read_record(self._header.entries[name].place, Definition)

    def solution(self, name: str) -> Solution:
        """Load a solution; reads its file only.

        Raises:
            UnknownName: There is no such solution.
            InvalidRecord: Its file has changed since the table was made, or cannot be read any more.
        """
        if isinstance(self._source, TraceSet):
            found = self._source.get_solution(name)
            if found is None:
                raise UnknownName("solution", name, self._source.solution_names())
            return found
        if name not in self._header.solutions:
            raise UnknownName("solution", name, tuple(self._header.solutions))
        return self._source.read_record(self._header.solutions[name], Solution)


@attrs.frozen
class HardwareView:
    """The view of a table from one hardware. Solutions are those for plain calls, which need no plan."""

    table: ApplyTable = attrs.field(repr=False)
    name: str

    def rankings(self, definition: str) -> HardwareRankings | None:
        """The rankings of the hardware, else of its first substitute with traces."""
        found = self.table.rankings(definition)
        return next((found[name] for name in self.table.hardware_order(self.name, definition) if name in found), None)

    def match_solution(self, definition: str, key: ApplyKey) -> str | None:
        """The solution for a recorded key; None on a miss."""
        rankings = self.rankings(definition)
        ranking = None if rankings is None else rankings.by_key.get(rankings.key_of(key))
        return ranking.plain.solution if ranking is not None and ranking.plain is not None else None

    @property
    def index(self) -> Mapping[str, Mapping[ApplyKey, str]]:
        """Solutions by definition and key. Decodes a definition on access."""
        return _Index(self)

    @property
    def def_best(self) -> Mapping[str, str]:
        """By definition, the best solution over all keys. Decodes the whole table."""
        found = {}
        for definition in self.table.definitions:
            rankings = self.rankings(definition)
            if rankings is not None and rankings.best is not None and rankings.best.plain is not None:
                found[definition] = rankings.best.plain.solution
        return found

    def winners(self) -> list[tuple[str, str, int]]:
        """Definition, solution and number of keys that it wins, most keys first. Decodes nothing.

        A solution wins a key if it is the first candidate, or the first that needs no plan.
        """
        found = [
            (definition, solution, keys)
            for definition in self.table.definitions
            for solution, keys in self.table.wins(definition, self.table.hardware_order(self.name, definition)).items()
        ]
        return sorted(found, key=lambda winner: (-winner[2], winner[0], winner[1]))


@attrs.frozen(eq=False)
class _Index(Mapping[str, Mapping[ApplyKey, str]]):
    """Solutions by definition and key, decoded on access."""

    _view: HardwareView

    def __getitem__(self, definition: str) -> Mapping[ApplyKey, str]:
        rankings = self._view.rankings(definition)
        if rankings is None:
            raise KeyError(definition)
        return {key: ranking.plain.solution for key, ranking in rankings.by_key.items() if ranking.plain is not None}

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._view.table.definitions if self._view.rankings(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)
