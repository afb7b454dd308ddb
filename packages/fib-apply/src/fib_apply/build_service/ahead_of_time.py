"""Ahead-of-time builds: the solutions of a table to build when a runtime is enabled."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from typing import TypeAlias

from fib_schema import FibError

from ..config import ApplyConfigRegistry, OnMiss
from ..hardware import local_hardware
from ..log import logger
from ..selection.table import ApplyTable
from .batch import OnProgress
from .service import BuildService

_Wanted: TypeAlias = tuple[str, str]
"""A definition and a solution, by name."""


def build_ahead(table: ApplyTable, config: ApplyConfigRegistry, service: BuildService, on_progress: OnProgress) -> None:
    """Build the share of selected solutions that `ApplyConfig.aot_ratio` states; next candidates where one fails."""
    wanted, tried = _wanted(table, config), set[_Wanted]()
    while wanted:
        tried.update(wanted)
        build_pairs(table, wanted, service, on_progress)
        left_out = service.left_out()
        failed = {name for name, solution in wanted if solution in left_out}
        wanted = [pair for pair in first_candidates(table, failed, left_out) if pair not in tried]


def build_pairs(table: ApplyTable, wanted: Iterable[_Wanted], service: BuildService, on_progress: OnProgress) -> None:
    """Build solutions of a table and wait; those that cannot be read are logged."""
    pairs = []
    for name, solution in wanted:
        try:
            pairs.append((table.definition(name), table.solution(solution)))
        except FibError as error:
            logger.warning("%s", error)
    if pairs:
        service.build_ahead(pairs, on_progress)


def first_candidates(table: ApplyTable, definitions: Iterable[str], left_out: Container[str]) -> Iterator[_Wanted]:
    """The first candidate of each key for plain calls that is not left out."""
    for name in definitions:
        for hardware in local_hardware():
            rankings = table.for_hardware(hardware).rankings(name)
            for ranking in rankings.by_key.values() if rankings is not None else ():
                usable = (c.solution for c in ranking.plain_candidates if c.solution not in left_out)
                if (solution := next(usable, None)) is not None:
                    yield name, solution


def _wanted(table: ApplyTable, config: ApplyConfigRegistry) -> list[_Wanted]:
    """The share of winners of each definition, those that win most keys first."""
    winners: dict[str, list[str]] = {}
    for hardware in local_hardware():
        for definition, solution, _ in table.for_hardware(hardware).winners():
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
            rankings = table.for_hardware(hardware).rankings(name)
            if rankings is not None and rankings.best is not None and rankings.best.plain is not None:
                yield name, rankings.best.plain.solution
