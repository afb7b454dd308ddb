"""Table hash: equal in processes that would choose the same solutions, on any host."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence

import attrs
from fib_schema.package_init import installed_version

from ..config import ApplyConfig
from .dataset_files import digest_of
from .rankings import Candidate, HardwareRankings, Ranking
from .table import ApplyTable

_PACKAGES = ("fib-schema", "fib-compile", "fib-apply", "torch")


def table_hash(table: ApplyTable, hardware: Sequence[str]) -> str:
    """The hash of all that decides which solution serves a call.

    It covers the order of the candidates of each key, the content of definitions and solutions, the settings, the
    hardware, and the versions of Python, torch and these packages. It does not cover latencies, paths and times of
    files, which may differ between hosts.

    Args:
        table: The table.
        hardware: The hardware names of this machine.
    """
    return digest_of(_parts(table, hardware)).hex()


def _parts(table: ApplyTable, hardware: Sequence[str]) -> Iterator[str | bytes]:
    yield from ("python", platform.python_version(), "hardware", *hardware)
    for package in _PACKAGES:
        yield from (package, installed_version(package))
    solutions: set[str] = set()
    for name in sorted(table.definitions):
        yield from ("definition", name, table.digest_of_definition(name))
        yield from _settings(table.settings(name))
        rankings = table.rankings(name)
        for place in dict.fromkeys(one for own in hardware for one in table.hardware_order(own, name)):
            if place in rankings:
                yield from ("on", place, *_rankings(rankings[place]))
                solutions.update(c.solution for ranking in _all(rankings[place]) for c in ranking.candidates)
    for name in sorted(solutions):
        yield from ("solution", name, table.digest_of_solution(name))


def _settings(config: ApplyConfig) -> Iterator[str]:
    for field in attrs.fields(ApplyConfig):
        value = getattr(config, field.name)
        yield from (field.name, repr(sorted(value.items()) if field.name == "nearest" else value))


def _rankings(rankings: HardwareRankings) -> Iterator[str]:
    yield from ("batch axes", *rankings.batch_axes)
    for key in sorted(rankings.by_key, key=lambda key: key.encode):
        yield from ("key", key.encode, *map(_candidate, rankings.by_key[key].candidates))
    if rankings.best is not None:
        yield from ("best", *map(_candidate, rankings.best.candidates))


def _all(rankings: HardwareRankings) -> Iterator[Ranking]:
    yield from rankings.by_key.values()
    if rankings.best is not None:
        yield rankings.best


def _candidate(candidate: Candidate) -> str:
    return f"{candidate.solution}\0{candidate.has_setup} {candidate.may_capture} {candidate.may_pad}"
