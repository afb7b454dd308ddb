"""Router: the dispatchers of one table, what is built ahead for it, and what serves each recorded key now.

A reload makes another router, so that a call sees one table as a whole. Nothing here imports torch before a call is
routed or a solution is built.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

import attrs
from fib_schema import Definition, FibError, UnknownName
from fib_schema.display import counted

from .build_service.service import BuildService
from .config import Configuration, OnMiss
from .events import (
    BEING_BUILT,
    NOTHING_BUILT,
    QUARANTINED,
    UNREADABLE,
    CallMetrics,
    DefinitionStats,
    emit,
    is_observed,
    logger,
    routed,
)
from .key import ApplyKey, ApplyKeyBuilder, ApplyKeyFactory, AxesOnlyKeyBuilder
from .routing.native.module import guards_in_use
from .selection.rankings import HardwareRankings, Ranking
from .selection.table import ApplyTable, local_hardware

if TYPE_CHECKING:
    from .routing.dispatcher import Dispatcher

_Wanted: TypeAlias = tuple[str, str]
"""A definition and a solution, by name."""


@attrs.frozen
class KeyState:
    """Current server of the calls of a recorded key: a solution or the fallback."""

    key: ApplyKey
    solution: str | None
    """None if the fallback does."""
    reason: str | None = None
    """Reason why the fallback serves them; None if a solution does."""


class Router:
    """Makes the dispatchers of a table when they are first needed."""

    def __init__(
        self,
        table: ApplyTable,
        configuration: Configuration,
        *,
        build_service: BuildService,
        metrics: dict[str, CallMetrics],
        quarantined: Mapping[str, Mapping[str, str]],
        wait_seconds: float = 0.0,
    ) -> None:
        self.table = table
        self.config = configuration.registry
        self.build_service = build_service
        self._metrics = metrics
        self._is_counted = configuration.is_counted
        self._quarantined = quarantined
        self._wait_seconds = wait_seconds
        self._lock = threading.RLock()
        self._dispatchers: dict[str, Dispatcher | None] = {}

    def dispatcher(self, name: str) -> Dispatcher | None:
        """The dispatcher of a definition, or None if the data set has none of that name."""
        try:
            return self._dispatchers[name]
        except KeyError:
            made = self._make_dispatcher(name)
        with self._lock:
            return self._dispatchers.setdefault(name, made)  # another thread may have been faster

    def _make_dispatcher(self, name: str) -> Dispatcher | None:
        """A new dispatcher; made without the lock, because key builders and the pool may be other code."""
        from .routing.dispatcher import Dispatcher  # imports torch, as the other one
        from .routing.slow_path import CandidatePool

        definition = _load_definition(self.table, name)
        if definition is None:
            return None
        pool = CandidatePool(
            definition,
            self.table.rankings(name),
            self.config.get(name),
            build_service=self.build_service,
            load_solution=self.table.solution,
            quarantined=self._quarantined.get(name, {}),
            wait_seconds=self._wait_seconds,
        )
        metrics = self._metrics.setdefault(name, CallMetrics())
        return Dispatcher(pool, _key_builder(definition), is_counted=self._is_counted, metrics=metrics)

    def _made(self) -> dict[str, Dispatcher]:
        """The dispatchers that exist."""
        return {name: found for name, found in self._dispatchers.copy().items() if found is not None}

    def stats(self) -> dict[str, DefinitionStats]:
        """The current counts by definition; empty if calls are not counted."""
        return {name: found.snapshot() for name, found in self._metrics.copy().items()} if self._is_counted else {}

    # -- quarantines ---------------------------------------------------------------------------------

    def quarantined(self, definition: str) -> Mapping[str, str]:
        """The solutions of a definition that are no longer called, each with the reason."""
        dispatcher = self._dispatchers.get(definition)
        return self._quarantined.get(definition, {}) if dispatcher is None else dispatcher.pool.quarantined

    def left_out(self) -> dict[str, str]:
        """The solutions that are not called, each with the reason."""
        found = self.build_service.left_out()
        for name in self._made():
            found |= self.quarantined(name)
        return found

    def continue_quarantines(self, earlier: Router) -> None:
        """Call no solution that another router no longer calls, if it is unchanged; before any call is routed."""
        self._quarantined = earlier.still_quarantined(self.table)

    def still_quarantined(self, table: ApplyTable) -> dict[str, dict[str, str]]:
        """The quarantined solutions that are unchanged in another table."""
        found: dict[str, dict[str, str]] = {}
        for name in {*self._quarantined, *self._made()}:
            for solution, reason in self.quarantined(name).items():
                if reason.startswith(UNREADABLE):
                    continue  # perhaps it was being copied
                try:
                    is_same = self.table.solution(solution).hash() == table.solution(solution).hash()
                except FibError:
                    continue  # changed or removed
                if is_same:
                    found.setdefault(name, {})[solution] = reason
        return found

    # -- builds --------------------------------------------------------------------------------------

    def build_ahead(self) -> None:
        """Build the share of selected solutions that `ApplyConfig.aot_ratio` states; next candidates where one fails.

        Then log for each definition which keys are routed.
        """
        wanted, tried = self._wanted(), set[_Wanted]()
        while wanted:
            tried.update(wanted)
            self._build(wanted)
            left_out = self.build_service.left_out()
            failed = {name for name, solution in wanted if solution in left_out}
            wanted = [pair for pair in self._first_candidates(failed) if pair not in tried]
        if not is_observed(logging.INFO):  # decoding all rankings takes time
            return
        for name in self.table.definitions:
            states = self.key_states(name)
            by_solution = Counter(state.solution for state in states if state.solution is not None)
            by_reason = Counter(state.reason for state in states if state.reason is not None)
            emit(routed(name, by_solution, by_reason))

    def _build(self, wanted: Iterable[_Wanted]) -> None:
        """Build solutions and wait; those that cannot be read are logged."""
        pairs = []
        for name, solution in wanted:
            try:
                pairs.append((self.table.definition(name), self.table.solution(solution)))
            except FibError as error:
                logger.warning("%s", error)
        if pairs:
            self.build_service.build_ahead(pairs)

    def _wanted(self) -> list[_Wanted]:
        """The share of winners of each definition, those that win most keys first, and what serves other keys."""
        winners: dict[str, list[str]] = {}
        for hardware in local_hardware():
            for definition, solution, _ in self.table.winners(hardware):
                winners.setdefault(definition, []).append(solution)
        counts = {name: math.ceil(self.config.get(name).aot_ratio * len(found)) for name, found in winners.items()}
        wanted = [(name, solution) for name, found in winners.items() for solution in found[: counts[name]]]
        return list(dict.fromkeys([*wanted, *self._wanted_for_misses()]))

    def _wanted_for_misses(self) -> Iterator[_Wanted]:
        """The solutions that serve unrecorded keys; they may win no key."""
        for name in self.table.definitions:
            settings = self.config.get(name)
            if settings.on_miss_policy is not OnMiss.USE_DEF_BEST or settings.aot_ratio == 0:
                continue
            for rankings in self._local_rankings(name):
                if rankings.best is not None and rankings.best.plain is not None:
                    yield name, rankings.best.plain.solution

    def _first_candidates(self, definitions: Iterable[str]) -> Iterator[_Wanted]:
        """The first candidate of each key for plain calls that is not left out."""
        left_out = self.build_service.left_out()
        for name in definitions:
            for rankings in self._local_rankings(name):
                for ranking in rankings.by_key.values():
                    usable = (c.solution for c in ranking.plain_candidates if c.solution not in left_out)
                    if (solution := next(usable, None)) is not None:
                        yield name, solution

    def _local_rankings(self, name: str) -> list[HardwareRankings]:
        """The rankings of a definition on the hardware of this machine."""
        found = self.table.rankings(name)
        return [found[hardware] for hardware in local_hardware() if hardware in found]

    # -- states of keys ------------------------------------------------------------------------------

    def key_states(self, name: str, *, are_captured: bool = False) -> list[KeyState]:
        """The recorded keys of a definition on the first hardware of this machine that has some."""
        quarantined = self.quarantined(name)
        return [
            self._state(key, ranking.of_captured() if are_captured else ranking, quarantined)
            for rankings in self._local_rankings(name)[:1]
            for key, ranking in rankings.by_key.items()
        ]

    def _state(self, key: ApplyKey, ranking: Ranking, quarantined: Mapping[str, str]) -> KeyState:
        plain, service = ranking.plain_candidates, self.build_service
        if not plain:
            return KeyState(key, None, ranking.plain_problem)
        usable = (c.solution for c in plain if c.solution not in quarantined and service.problem(c.solution) is None)
        first = next(usable, None)
        if first is None:
            is_any_quarantined = any(candidate.solution in quarantined for candidate in plain)
            return KeyState(key, None, QUARANTINED if is_any_quarantined else NOTHING_BUILT)
        if service.find(first) is None:
            return KeyState(key, None, BEING_BUILT if service.is_requested(first) else "not built yet")
        return KeyState(key, first)

    # -- captures ------------------------------------------------------------------------------------

    def open_capture_gate(self, seconds: float) -> None:
        """Let captures record what becomes ready, for which calls wait at most so many seconds in all."""
        self.build_service.open_capture_gate(seconds)
        self._invalidate()

    def close_capture_gate(self) -> dict[str, list[KeyState]]:
        """Let captures record no solution that becomes ready from now on; returns what is ready, by definition."""
        in_phase = self.build_service.prepares_captures
        self.build_service.close_capture_gate()
        self._invalidate()
        return {
            name: [self._capturable(name, state) for state in self.key_states(name, are_captured=in_phase)]
            for name in self.table.definitions
        }

    def _invalidate(self) -> None:
        """Resolve all calls again: entries may refuse captures that an earlier gate did not let through."""
        for dispatcher in self._made().values():
            dispatcher.invalidate()

    def _capturable(self, name: str, state: KeyState) -> KeyState:
        """The state of a key for captured calls; a solution that compiles at its first run is ready after that."""
        if state.solution is None or not self.build_service.compiles_when_called(state.solution):
            return state
        dispatcher = self._dispatchers.get(name)
        reason: str | None = "not called yet"
        if dispatcher is not None:
            reason = dispatcher.slow_path.first_run_problem(state.solution, state.key)
        return state if reason is None else KeyState(state.key, None, reason)


def _load_definition(table: ApplyTable, name: str) -> Definition | None:
    """A definition; None, which is logged, if the data set has none, or its file has changed since."""
    try:
        return table.definition(name)
    except UnknownName as error:
        logger.info("%s; calls of %r go to their fallbacks", error, name)
    except FibError as error:
        logger.warning("calls of %r go to their fallbacks: %s", name, error)
    return None


def _key_builder(definition: Definition) -> ApplyKeyBuilder:
    """A definition's key builder; if it raises, one of axes alone, whose keys the table does not have."""
    try:
        return ApplyKeyFactory.specialize(definition)
    except Exception as error:  # noqa: BLE001 of a registered builder
        logger.warning("%s: its key builder raised %s: %s", definition.name, type(error).__name__, error)
        return AxesOnlyKeyBuilder(definition)


# -- the result of a warm-up --------------------------------------------------------------------------


@attrs.frozen
class Readiness:
    """Solutions available to captured calls, by definition and recorded key."""

    ready: Mapping[str, Mapping[ApplyKey, str]]
    """The solutions that are ready."""
    not_ready: Mapping[str, Mapping[ApplyKey, str]]
    """Reasons for capturing the fallback for the other keys."""
    is_finished: bool
    """Whether all background work ended before the deadline."""
    seconds: float
    problem: str | None = None
    """Reason for missing results; None if the warm-up ran."""
    guards: str = ""
    """The guards that routes use, and why they are not native ones; empty if nothing is routed."""

    def __str__(self) -> str:
        ready, others = (sum(map(len, found.values())) for found in (self.ready, self.not_ready))
        text = f"warm-up: ready for {ready} of {counted(ready + others, 'key')}, {self.seconds:.2f} s"
        if not self.is_finished and self.problem is None:
            text += "; the deadline passed before all background work was done"
        text += f"; {self.guards}" if self.guards else ""
        return text if self.problem is None else f"{text}; {self.problem}"


Settled: TypeAlias = "tuple[bool, Mapping[str, list[KeyState]]]"
"""Whether all background work has ended, and the states of keys by definition."""


def observed_warm_up(work: Callable[[], Settled | str]) -> Readiness:
    """The result of a warm-up. Work that raises, or returns a problem, is no error: the engine goes on."""
    began, is_finished, problem = time.monotonic(), False, None
    states: Mapping[str, list[KeyState]] = {}
    try:
        found = work()
        if isinstance(found, str):
            problem = found
        else:
            is_finished, states = found
    except Exception as error:  # noqa: BLE001 becomes a part of the result
        problem = f"{type(error).__name__}: {error}"
    ready: dict[str, dict[ApplyKey, str]] = {}
    not_ready: dict[str, dict[ApplyKey, str]] = {}
    for name, state in ((name, state) for name, of_name in states.items() for state in of_name):
        if state.solution is not None:
            ready.setdefault(name, {})[state.key] = state.solution
        else:
            not_ready.setdefault(name, {})[state.key] = state.reason or ""
    guards = guards_in_use() if problem is None else ""
    result = Readiness(ready, not_ready, is_finished, time.monotonic() - began, problem, guards)
    logger.info("%s", result)
    return result
