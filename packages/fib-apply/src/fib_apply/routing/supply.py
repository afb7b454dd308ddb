"""Which solutions a definition's calls can have now: chosen, built, and not given up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import attrs
from fib_compile import Runnable
from fib_compile.device import hardware_from_device
from fib_compile.forking import ForkSafeLock
from fib_schema import Definition, FibError, Solution

from ..building.workshop import Workshop
from ..choosing.rules import Candidate, Choices, Ranking
from ..config import ApplyConfig
from ..key import ApplyKey
from ..log import logger
from .policy import ranking_for

BEING_BUILT = "being built"
"""The one reason that passes."""


@attrs.frozen
class Supplied:
    """A solution that is built."""

    solution: str
    runnable: Runnable
    candidate: Candidate


class Supply:
    """The solutions of one definition.

    Args:
        definition: What is computed.
        choices: By hardware, what to choose.
        config: The settings of this definition.
        workshop: Builds solutions.
        solution_of: Loads a solution by its name.
        quarantined: Solutions that are not to be called, and why.
    """

    def __init__(
        self,
        definition: Definition,
        choices: Mapping[str, Choices],
        config: ApplyConfig,
        workshop: Workshop,
        solution_of: Callable[[str], Solution],
        quarantined: Mapping[str, str],
    ) -> None:
        self.choices = choices
        self.quarantined = quarantined
        """Solutions that are not called any more, and why."""
        self._definition = definition
        self._config = config
        self._workshop = workshop
        self._solution_of = solution_of
        self._requested: set[str] = set()
        self._lock = ForkSafeLock()

    def ranking(self, key: ApplyKey, device: str) -> Ranking | None:
        """The candidates for a key on a device; None if nothing recorded may serve it."""
        return ranking_for(self._choices_on(device), key, self._config)

    def _choices_on(self, device: str) -> Choices | None:
        """What was measured on a device's hardware, or on other hardware that settings name."""
        own = hardware_from_device("cuda:0" if device == "cuda" else device)
        return next((self.choices[name] for name in (own, *self._config.other_hardware) if name in self.choices), None)

    def first(self, ranking: Ranking, *, is_planned: bool = False) -> Supplied | None:
        """The first candidate that is not given up, if it is built; asks for it to be, if not.

        Args:
            ranking: The candidates.
            is_planned: Whether solutions with ``setup`` can be used.
        """
        for candidate in self._left(ranking):
            if candidate.has_setup and not is_planned:
                continue
            runnable = self._workshop.find(candidate.solution)
            if runnable is None:
                self._request(candidate.solution)
                return None
            if runnable.setup is None or is_planned:
                return Supplied(candidate.solution, runnable, candidate)
        return None

    def why_none(self, ranking: Ranking) -> str:
        """Why no candidate serves plain calls now."""
        plain = [candidate for candidate in ranking.candidates if not candidate.has_setup]
        built = [self._workshop.find(candidate.solution) for candidate in self._left(ranking) if candidate in plain]
        if None in built:
            return BEING_BUILT
        return "by plan only" if built or not plain else "nothing built"

    def _left(self, ranking: Ranking) -> Iterator[Candidate]:
        """Those that are not given up."""
        for candidate in ranking.candidates:
            if candidate.solution not in self.quarantined and self._workshop.problem(candidate.solution) is None:
                yield candidate

    def _request(self, name: str) -> None:
        """Have a solution built in the background, once."""
        with self._lock:
            if name in self._requested:
                return
            self._requested.add(name)
        try:
            self._workshop.request(self._definition, self._solution_of(name))
        except FibError as error:
            self.give_up(name, str(error))

    def give_up(self, solution: str, reason: str) -> bool:
        """Supply a solution no more; returns whether that is new."""
        with self._lock:
            if solution in self.quarantined:
                return False
            self.quarantined = {**self.quarantined, solution: reason}
        logger.warning("%s: %r is not called any more: %s", self._definition.name, solution, reason)
        return True

    def recorded(self, solution: str, key: ApplyKey, device: str) -> Candidate | None:
        """What traces say of a solution at a key: its tolerance, for one."""
        ranking = self.ranking(key, device)
        return next((c for c in ranking.candidates if c.solution == solution), None) if ranking is not None else None

    def renew_after_fork(self) -> None:
        """Forget requests: the parent process builds them, and this one does not."""
        self._requested.clear()
