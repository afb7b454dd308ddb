"""Synchronizer: brings one replica's builds, quarantines and table to an agreement with the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs
from fib_schema import FibError
from fib_schema.settings import InvalidSetting

from .build_service.service import BuildService, OnProgress
from .config import ApplyConfigRegistry
from .readiness import build_pairs, first_candidates
from .replicas import AgreedKernels, Agreement, ReplicaGroup, ReplicaState
from .selection.table import ApplyTable, local_hardware

_MAX_ROUNDS = 16
"""Solutions that fail one after the other on some replica, before the rest is left to the fallback."""


class Router(Protocol):
    """The routes of one table."""

    table: ApplyTable
    build_service: BuildService

    def compiled_runs(self) -> set[str]:
        """The names of first runs whose kernels are compiled."""
        ...

    def still_quarantined(self, table: ApplyTable) -> Mapping[str, Mapping[str, str]]:
        """The quarantined solutions that are unchanged in another table, by definition, each with the reason."""
        ...


@attrs.frozen
class Synchronizer:
    """Synchronizes one table of one runtime with the other replicas."""

    group: ReplicaGroup
    current: Router
    """The active routes."""
    wanted: Router
    """The routes to activate; the same, or those of a reload."""
    on_progress: OnProgress
    is_off: bool = False
    """Whether this replica routes nothing."""

    def agree(self, timeout_seconds: float) -> tuple[Agreement, AgreedKernels]:
        """Build what all replicas can use, and return it.

        If a solution is not usable on some replica, all build the next candidate and exchange their states again.

        Args:
            timeout_seconds: How long each exchange waits for the others, builds included.

        Raises:
            NoAgreement: A replica did not come in time, or its table differs.
        """
        table, service = self.wanted.table, self.wanted.build_service
        name = "routing is off" if self.is_off else table.replica_hash(local_hardware())
        runs = unchanged_runs(self.current.compiled_runs(), self.current.table, table)
        agreement = None
        for _ in range(_MAX_ROUNDS):
            state = self._state(name, runs)
            agreement = Agreement.of(self.group.exchange(state.to_json(), timeout_seconds))
            wanted = set(first_candidates(table, table.definitions, agreement.excluded))
            missing = sorted(pair for pair in wanted if pair[1] not in agreement.solutions)
            if not missing or self.is_off:
                break
            build_pairs(table, missing, service, self.on_progress)
        assert agreement is not None  # there is at least one round
        loaded = service.loaded()
        runnables = {name: loaded[name][1] for name in agreement.solutions - agreement.excluded}
        return agreement, AgreedKernels(runnables, agreement.runs, runs)

    def _state(self, table: str, runs: frozenset[str]) -> ReplicaState:
        service = self.wanted.build_service
        loaded = {name: solution.hash() for name, (solution, _) in service.loaded().items()}
        found = sorted(self.current.still_quarantined(self.wanted.table).items())
        quarantined = [(definition, name, why) for definition, of_it in found for name, why in of_it.items()]
        return ReplicaState(table, loaded, sorted(service.left_out()), quarantined, sorted(runs))


def check_settings(replicas: ReplicaGroup | None, config: ApplyConfigRegistry) -> None:
    """Refuse settings by which replicas would run different kernels for one call.

    Raises:
        InvalidSetting: A share of the calls is to be compared, which each replica draws on its own.
    """
    for settings in (config.default, *config.per_definition.values()) if replicas is not None else ():
        if settings.shadow_ratio > 0:
            raise InvalidSetting(
                "shadow_ratio", settings.shadow_ratio, "0 with replicas, which draw calls on their own"
            )


def unchanged_runs(runs: set[str], old: ApplyTable, new: ApplyTable) -> frozenset[str]:
    """The first runs of solutions that are the same in another table."""
    names = {name for name in {run.partition("\0")[0] for run in runs} if _is_same(name, old, new)}
    return frozenset(run for run in runs if run.partition("\0")[0] in names)


def _is_same(solution: str, old: ApplyTable, new: ApplyTable) -> bool:
    try:
        return old is new or old.digest_of_solution(solution) == new.digest_of_solution(solution)
    except FibError:
        return False  # it was removed
