"""Readiness: what is built ahead, what serves each recorded key on this machine now, and the result of a warm-up."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import TypeAlias

import attrs
from fib_schema import FibError
from fib_schema.display import counted

from .build_service.service import BuildService
from .config import ApplyConfigRegistry, OnMiss
from .events import BEING_BUILT, NOTHING_BUILT, QUARANTINED, Event, logger, routed
from .key import ApplyKey
from .routing.native.module import guards_in_use
from .selection.rankings import Ranking
from .selection.table import ApplyTable, local_hardware

_Wanted: TypeAlias = tuple[str, str]
"""A definition and a solution, by name."""


def build_ahead(table: ApplyTable, config: ApplyConfigRegistry, service: BuildService) -> None:
    """Build the share of selected solutions that `ApplyConfig.aot_ratio` states; next candidates where one fails."""
    wanted, tried = _wanted(table, config), set[_Wanted]()
    while wanted:
        tried.update(wanted)
        build_pairs(table, wanted, service)
        left_out = service.left_out()
        failed = {name for name, solution in wanted if solution in left_out}
        wanted = [pair for pair in first_candidates(table, failed, left_out) if pair not in tried]


def build_pairs(table: ApplyTable, wanted: Iterable[_Wanted], service: BuildService) -> None:
    """Build solutions of a table and wait; those that cannot be read are logged."""
    pairs = []
    for name, solution in wanted:
        try:
            pairs.append((table.definition(name), table.solution(solution)))
        except FibError as error:
            logger.warning("%s", error)
    if pairs:
        service.build_ahead(pairs)


def first_candidates(table: ApplyTable, definitions: Iterable[str], left_out: Container[str]) -> Iterator[_Wanted]:
    """The first candidate of each key for plain calls that is not left out."""
    for name in definitions:
        for hardware in local_hardware():
            rankings = table.rankings(name).get(hardware)
            for ranking in rankings.by_key.values() if rankings is not None else ():
                usable = (c.solution for c in ranking.plain_candidates if c.solution not in left_out)
                if (solution := next(usable, None)) is not None:
                    yield name, solution


def _wanted(table: ApplyTable, config: ApplyConfigRegistry) -> list[_Wanted]:
    """The share of winners of each definition, those that win most keys first."""
    winners: dict[str, list[str]] = {}
    for hardware in local_hardware():
        for definition, solution, _ in table.winners(hardware):
            winners.setdefault(definition, []).append(solution)
    counts = {name: math.ceil(config.get(name).aot_ratio * len(found)) for name, found in winners.items()}
    wanted = [(name, solution) for name, found in winners.items() for solution in found[: counts[name]]]
    return list(dict.fromkeys([*wanted, *_wanted_for_misses(table, config)]))


def _wanted_for_misses(table: ApplyTable, config: ApplyConfigRegistry) -> Iterator[_Wanted]:
    """The solutions that serve unrecorded keys; they may win no key."""
    for name in table.definitions:
        settings = config.get(name)
        if settings.on_miss_policy is not OnMiss.USE_DEF_BEST or settings.aot_ratio == 0:
            continue
        for hardware in local_hardware():
            rankings = table.rankings(name).get(hardware)
            if rankings is not None and rankings.best is not None and rankings.best.plain is not None:
                yield name, rankings.best.plain.solution


# -- states of keys ----------------------------------------------------------------------------------


@attrs.frozen
class KeyState:
    """Current server of the calls of a recorded key: a solution or the fallback."""

    key: ApplyKey
    solution: str | None
    """None if the fallback does."""
    reason: str | None
    """Reason why the fallback serves them; None if a solution does."""


def key_states(
    table: ApplyTable,
    definition: str,
    service: BuildService,
    quarantined: Mapping[str, str],
    *,
    are_captured: bool = False,
) -> list[KeyState]:
    """The states of the recorded keys of a definition, on the first hardware of this machine that has some."""
    by_hardware = table.rankings(definition)
    rankings = next((by_hardware[name] for name in local_hardware() if name in by_hardware), None)
    if rankings is None:
        return []
    found = {key: one.of_captured() if are_captured else one for key, one in rankings.by_key.items()}
    return [_state(key, ranking, service, quarantined) for key, ranking in found.items()]


def routed_event(states: Iterable[KeyState], definition: str) -> Event:
    """The event with the numbers of keys by solution and by reason."""
    found = list(states)
    by_solution = Counter(state.solution for state in found if state.solution is not None)
    by_reason = Counter(state.reason for state in found if state.reason is not None)
    return routed(definition, by_solution, by_reason)


def _state(key: ApplyKey, ranking: Ranking, service: BuildService, quarantined: Mapping[str, str]) -> KeyState:
    plain = ranking.plain_candidates
    if not plain:
        return KeyState(key, None, ranking.plain_problem)
    usable = (c.solution for c in plain if c.solution not in quarantined and service.problem(c.solution) is None)
    first = next(usable, None)
    if first is None:
        is_any_quarantined = any(candidate.solution in quarantined for candidate in plain)
        return KeyState(key, None, QUARANTINED if is_any_quarantined else NOTHING_BUILT)
    if service.find(first) is None:
        return KeyState(key, None, BEING_BUILT if service.is_requested(first) else "not built yet")
    return KeyState(key, first, None)


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
