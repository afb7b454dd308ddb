"""Candidate pool: the selected solutions of one definition that are loaded and not quarantined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import attrs
from fib_compile import Runnable
from fib_compile.device import hardware_from_device
from fib_compile.forking import ForkSafeLock, renew_on_fork
from fib_schema import Definition, FibError, Solution

from ..build_service.service import BuildService
from ..config import ApplyConfig
from ..key import ApplyKey
from ..log import logger
from ..selection.miss_policy import ranking_for
from ..selection.rules import Candidate, HardwareRankings, Ranking

BEING_BUILT = "being built"
"""The only reason for a miss that ends by itself."""


@attrs.frozen
class LoadedCandidate:
    """A candidate whose solution is loaded."""

    solution: str
    runnable: Runnable
    candidate: Candidate


class CandidatePool:
    """The solutions of one definition.

    Args:
        definition: The definition.
        rankings: By hardware.
        config: The settings of the definition.
        build_service: Builds and holds solutions.
        load_solution: Reads a solution by its name.
        quarantined: Solutions that must not be called, each with the reason.
    """

    def __init__(
        self,
        definition: Definition,
        rankings: Mapping[str, HardwareRankings],
        config: ApplyConfig,
        *,
        build_service: BuildService,
        load_solution: Callable[[str], Solution],
        quarantined: Mapping[str, str],
    ) -> None:
        self.definition = definition
        self.rankings = rankings
        self.config = config
        self.build_service = build_service
        self.quarantined = quarantined
        """Solutions that are no longer called, each with the reason; replaced on change, never edited."""
        self._load_solution = load_solution
        self._requested: set[str] = set()
        self._lock = ForkSafeLock()
        renew_on_fork(self)

    def renew_after_fork(self) -> None:
        """Forget requests: no thread serves them in the child."""
        self._requested.clear()

    def ranking(self, key: ApplyKey, device: str) -> Ranking | None:
        """The ranking that serves a key on a device; None if only the fallback may."""
        hardware = hardware_from_device("cuda:0" if device == "cuda" else device)
        names = (hardware, *self.config.other_hardware)
        rankings = next((self.rankings[name] for name in names if name in self.rankings), None)
        return ranking_for(rankings, key, self.config)

    def first_loaded(self, ranking: Ranking, *, is_planned: bool = False) -> LoadedCandidate | None:
        """The first usable candidate if it is loaded; requests its build and returns None if it is not.

        Args:
            ranking: The candidates.
            is_planned: Whether solutions with ``setup`` can be used.
        """
        for candidate in self._usable(ranking):
            if candidate.has_setup and not is_planned:
                continue
            runnable = self.build_service.find(candidate.solution)
            if runnable is None:
                self._request(candidate.solution)
                return None
            if runnable.setup is None or is_planned:
                return LoadedCandidate(candidate.solution, runnable, candidate)
        return None

    def miss_reason(self, ranking: Ranking) -> str:
        """Why no candidate serves plain calls now."""
        plain = [candidate for candidate in ranking.candidates if not candidate.has_setup]
        loaded = [self.build_service.find(c.solution) for c in self._usable(ranking) if c in plain]
        if None in loaded:
            return BEING_BUILT
        return "by plan only" if loaded or not plain else "nothing built"

    def _usable(self, ranking: Ranking) -> Iterator[Candidate]:
        """The candidates that are neither quarantined nor left out."""
        for candidate in ranking.candidates:
            if candidate.solution not in self.quarantined and self.build_service.problem(candidate.solution) is None:
                yield candidate

    def _request(self, name: str) -> None:
        """Request the build of a solution once."""
        with self._lock:
            if name in self._requested:
                return
            self._requested.add(name)
        try:
            self.build_service.request(self.definition, self._load_solution(name))
        except FibError as error:
            self.quarantine(name, str(error))

    def quarantine(self, solution: str, reason: str) -> bool:
        """Exclude a solution; returns False if it was excluded before."""
        with self._lock:
            if solution in self.quarantined:
                return False
            self.quarantined = {**self.quarantined, solution: reason}
        logger.warning("%s: solution %r is quarantined: %s", self.definition.name, solution, reason)
        return True

    def candidate(self, solution: str, key: ApplyKey, device: str) -> Candidate | None:
        """What traces record of a solution at a key, e.g. its tolerance."""
        ranking = self.ranking(key, device)
        return next((c for c in ranking.candidates if c.solution == solution), None) if ranking is not None else None
