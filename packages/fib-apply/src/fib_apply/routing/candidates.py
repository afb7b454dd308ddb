"""Candidate pool: the selected solutions of one definition that are loaded and not quarantined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
from fib_compile import Runnable
from fib_compile.device import hardware_from_device
from fib_compile.forking import ForkSafeLock, renew_on_fork
from fib_schema import Definition, FibError, Solution

from ..build_service.service import BuildService
from ..config import ApplyConfig, OnMiss
from ..events import emit, quarantined
from ..importing import is_importing
from ..key import ApplyKey
from ..miss_reasons import BEING_BUILT, NOT_AGREED, NOTHING_BUILT, QUARANTINED
from ..replicas.agreement import AgreedKernels
from ..selection.rankings import Candidate, HardwareRankings, NearestKeys, Ranking, ranking_for


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
        wait_seconds: How long a call may wait for solutions that are being built; 0 serves it by the fallback.
        agreed: What all replicas may call; None if there are no replicas.
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
        wait_seconds: float = 0.0,
        agreed: AgreedKernels | None = None,
    ) -> None:
        self.agreed = agreed
        self.definition = definition
        self.rankings = rankings
        self.config = config
        self.build_service = build_service
        self.quarantined = quarantined
        """Solutions that are no longer called, each with the reason; replaced on change, never edited."""
        self.reported = quarantined
        """The same; of replicas also those that are called until the next synchronization."""
        self.load_solution = load_solution
        self._wait_seconds = wait_seconds
        self._requested: set[str] = set()
        self._nearest: dict[str, NearestKeys] = {}
        self._rankings_of: dict[str, HardwareRankings | None] = {}
        """By device, behind which a process finds the same hardware for as long as it runs."""
        self._lock = ForkSafeLock()
        renew_on_fork(self)

    def renew_after_fork(self) -> None:
        """Forget requests: no thread serves them in the child."""
        self._requested.clear()

    def recorded_key(self, key: ApplyKey, device: str) -> ApplyKey:
        """The key under which a call's key is recorded, without the axes of which one ranking serves all sizes."""
        rankings = self._rankings_on(device)
        return key if rankings is None else rankings.key_of(key)

    def ranking(self, key: ApplyKey, device: str) -> Ranking | None:
        """The ranking that serves a key on a device; None if only the fallback may."""
        rankings = self._rankings_on(device)
        if rankings is None:
            return None
        nearest = None
        if self.config.on_miss_policy is OnMiss.NEAREST:
            nearest = self._nearest.get(rankings.hardware)
            if nearest is None:
                nearest = self._nearest[rankings.hardware] = NearestKeys(rankings.by_key, self.config.nearest)
        return ranking_for(rankings, key, self.config, nearest)

    def _rankings_on(self, device: str) -> HardwareRankings | None:
        """The rankings of a device's hardware, else of its first substitute with traces."""
        if device not in self._rankings_of:
            hardware = hardware_from_device("cuda:0" if device == "cuda" else device)
            names = (hardware, *self.config.other_hardware)
            self._rankings_of[device] = next((self.rankings[name] for name in names if name in self.rankings), None)
        return self._rankings_of[device]

    def first_loaded(
        self, ranking: Ranking, *, is_planned: bool = False, fallback_equivalents: frozenset[str] = frozenset()
    ) -> LoadedCandidate | None:
        """The first usable candidate if it is loaded; requests its build and returns None if it is not built in time.

        Args:
            ranking: The candidates.
            is_planned: Whether solutions with ``setup`` can be used.
            fallback_equivalents: Solutions that are the fallback in another form: callers call the fallback instead, so
                that these serve calls without a plan as well. Others that are not faster are skipped, unless
                `ApplyConfig.require_speedup` is off.
        """
        is_equivalent = fallback_equivalents.__contains__
        equivalents = [c for c in ranking.candidates if is_equivalent(c.solution)] if fallback_equivalents else []
        serving = ranking.candidates if is_planned else ranking.plain_candidates
        for candidate in self._usable(ranking):
            if candidate not in serving and candidate not in equivalents:
                continue
            if equivalents and self._is_no_speedup(candidate, equivalents):
                continue
            runnable = self.find(candidate.solution)
            if runnable is None:
                self._request(candidate.solution)
                if self._wait_seconds and not is_importing() and self.build_service.wait(self._wait_seconds):
                    runnable = self.find(candidate.solution)
                    if runnable is None and self.build_service.problem(candidate.solution) is not None:
                        continue  # its build failed
            if runnable is None:
                return None
            if runnable.setup is None or is_planned or candidate in equivalents:
                return LoadedCandidate(candidate.solution, runnable, candidate)
        return None

    def may_have_setup(self) -> bool:
        """Whether any candidate of any key may have a ``setup``, which its sources must name."""
        rankings = [ranking for one in self.rankings.values() for ranking in (*one.by_key.values(), one.best)]
        candidates = [c for ranking in rankings if ranking is not None for c in ranking.candidates]
        return any(c.has_setup for c in candidates) or any(map(self._names_setup, {c.solution for c in candidates}))

    def _names_setup(self, name: str) -> bool:
        try:
            return any("setup" in source.content for source in self.load_solution(name).sources)
        except FibError:
            return False  # it cannot be built either

    def first_usable(self, ranking: Ranking) -> Candidate | None:
        """The candidate that serves calls without a plan as soon as it is loaded; None if all are left out."""
        return next((found for found in self._usable(ranking) if found in ranking.plain_candidates), None)

    def find(self, solution: str) -> Runnable | None:
        """A loaded solution."""
        if self.agreed is not None:
            return self.agreed.runnables.get(solution)
        return self.build_service.find(solution)

    def _is_no_speedup(self, candidate: Candidate, equivalents: Sequence[Candidate]) -> bool:
        if candidate in equivalents or not self.config.require_speedup:
            return False
        return not all(candidate.is_faster_than_equivalent(other, self.config.margin) for other in equivalents)

    def miss_reason(self, ranking: Ranking) -> str:
        """Reason why no candidate serves plain calls now."""
        plain = ranking.plain_candidates
        if not plain:
            return ranking.plain_problem
        if self.agreed is not None:
            return NOT_AGREED
        loaded = [self.build_service.find(c.solution) for c in self._usable(ranking) if c in plain]
        if None in loaded:
            return BEING_BUILT
        if loaded:
            return "by plan only"
        return QUARANTINED if any(c.solution in self.quarantined for c in plain) else NOTHING_BUILT

    def _usable(self, ranking: Ranking) -> Iterator[Candidate]:
        """The candidates that are neither quarantined nor left out; of replicas, those that all have."""
        for candidate in ranking.candidates:
            if self.agreed is not None:
                if candidate.solution in self.agreed.runnables and candidate.solution not in self.quarantined:
                    yield candidate
            elif candidate.solution not in self.quarantined and self.build_service.problem(candidate.solution) is None:
                yield candidate

    def _request(self, name: str) -> None:
        """Request the build of a solution once."""
        with self._lock:
            if name in self._requested:
                return
            self._requested.add(name)
        try:
            self.build_service.request(self.definition, self.load_solution(name))
        except FibError as error:
            self.quarantine(name, str(error))

    def quarantine(self, solution: str, reason: str) -> bool:
        """Exclude a solution; returns False if it was excluded before, or stays in use until the next synchronization.

        One replica alone must not exclude it: the others would call it.
        """
        with self._lock:
            if solution in self.reported:
                return False
            self.reported = {**self.reported, solution: reason}
            if self.agreed is None:
                self.quarantined = self.reported
        emit(quarantined(self.definition.name, solution, reason))
        return self.agreed is None

    def candidate(self, solution: str, key: ApplyKey, device: str) -> Candidate | None:
        """Recorded facts about a solution at a key, e.g. its tolerance; None without a record."""
        ranking = self.ranking(key, device)
        return next((c for c in ranking.candidates if c.solution == solution), None) if ranking is not None else None
