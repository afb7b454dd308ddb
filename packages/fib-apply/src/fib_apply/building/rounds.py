"""Solutions that are built together: compiled in parallel, probed by one child process, loaded one by one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
from fib_schema import Solution

from ..log import logger
from .background import in_words
from .probing import Pair, probe

if TYPE_CHECKING:
    from fib_compile import BuilderRegistry, BuildError, BuildOutcome, Runnable

OnProgress: TypeAlias = Callable[[int, int, str], None]
"""Called with how many solutions are done, of how many, and the name of the one that was last worked on."""
_COMPILED_AT_ONCE = 4 * (os.cpu_count() or 1)
"""Handed to the compilers at a time: should a builder raise what it must not, so many at most lose their turn."""


class Stopped(BaseException):
    """Whoever wanted the rest does not wait for it any longer."""


@attrs.frozen
class Result:
    """What became of a solution: a runnable, or a problem."""

    solution: Solution
    runnable: Runnable | None
    problem: str | None

    def is_of(self, solution: Solution) -> bool:
        """Whether it is about this content."""
        return self.solution is solution or self.solution.hash() == solution.hash()


@attrs.frozen
class How:
    """What a caller wishes."""

    report: OnProgress = lambda *_: None
    is_stopped: Callable[[], bool] = lambda: False
    jobs: int | None = None
    """How many compilers at once; all cores by default."""


@attrs.define
class Round:
    """One pass over some solutions, in the background thread."""

    total: int
    get_registry: Callable[[], BuilderRegistry]
    settle: Callable[[Result], None]
    how: How
    cache_root: Path | None
    done: int = 0

    def build(self, pairs: list[Pair]) -> None:
        """Settle each; nothing that a solution does is raised.

        Raises:
            Stopped: The caller wants no more.
        """
        for pair in self._probed(self._compiled(pairs)):
            self._load(pair)

    def step(self, name: str, done: int = 0) -> None:
        """Say that a solution came further.

        Raises:
            Stopped: The caller wants no more.
        """
        self.done += done
        self.how.report(self.done, self.total, name)
        if self.how.is_stopped():
            raise Stopped

    def _compiled(self, pairs: list[Pair]) -> list[Pair]:
        """Those that need no compiler any more; the others are left out."""
        good = []
        for start in range(0, len(pairs), _COMPILED_AT_ONCE):
            some = pairs[start : start + _COMPILED_AT_ONCE]
            for pair, error in zip(some, self._compile(some), strict=True):
                if error is None:
                    good.append(pair)
                else:
                    self._leave_out(pair[1], str(error), error.problem)
        return good

    def _compile(self, pairs: list[Pair]) -> list[BuildError | None]:
        from fib_compile import Limits

        def on_done(outcome: BuildOutcome) -> None:
            self.step(outcome.solution.name)

        limits = Limits(is_stopped=self.how.is_stopped)
        try:
            outcomes = self.get_registry().build_many(pairs, jobs=self.how.jobs, limits=limits, on_done=on_done)
        except Exception as error:  # noqa: BLE001 - of a builder; what it means for a solution is seen when it is loaded
            logger.warning("compiling ahead failed: %s", in_words(error))
            return [None] * len(pairs)
        return [outcome.error for outcome in outcomes]

    def _probed(self, pairs: list[Pair]) -> list[Pair]:
        """Those that can be loaded without harm; the others are left out."""
        try:
            reasons = probe(pairs, cache_root=self.cache_root, on_done=lambda name, _: self.step(name))
        except Exception as error:  # noqa: BLE001 - better the fallback than a dead engine
            reasons = {solution.name: f"it could not be probed: {in_words(error)}" for _, solution in pairs}
        good = []
        for pair in pairs:
            if (reason := reasons[pair[1].name]) is None:
                good.append(pair)
            else:
                self._leave_out(pair[1], reason, reason)
        return good

    def _load(self, pair: Pair) -> None:
        definition, solution = pair
        try:
            runnable = self.get_registry().build(definition, solution)
        except BaseException as error:  # noqa: BLE001 - a module raises what it likes; a user's interrupt is not raised here
            self._leave_out(solution, *_told(error))
        else:
            self.settle(Result(solution, runnable, None))
            self.step(solution.name, done=1)

    def _leave_out(self, solution: Solution, problem: str, summary: str) -> None:
        logger.warning("solution %s is left out: %s", solution.name, summary.partition("\n")[0])
        self.settle(Result(solution, None, problem))
        self.step(solution.name, done=1)


def _told(error: BaseException) -> tuple[str, str]:
    """All that an exception says, and what of it goes into a log."""
    from fib_compile import BuildError

    if isinstance(error, BuildError):
        return str(error), error.problem
    return in_words(error), in_words(error)
