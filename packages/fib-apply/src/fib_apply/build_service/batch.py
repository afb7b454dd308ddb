"""Build batch: solutions that are compiled in parallel, probed by one child process, and loaded one by one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
from fib_schema import Solution

from ..events import EventKind, emit, finished
from ..log import logger
from .executor import InterpreterExit, summarize_error
from .probe import Pair, probe
from .probe_process import Cancelled

if TYPE_CHECKING:
    from fib_compile import BuilderRegistry, BuildError, BuildOutcome, Runnable

OnProgress: TypeAlias = Callable[[int, int, str], None]
"""Called with the number of finished solutions, their total, and the name of the last one that made progress."""
_COMPILE_CHUNK = 4 * (os.cpu_count() or 1)
"""Solutions per call of the compilers: if a builder breaks its contract and raises, at most this many are affected."""


@attrs.frozen
class BuildResult:
    """A solution with its runnable, or with the reason why it is left out."""

    solution: Solution
    runnable: Runnable | None
    problem: str | None
    finished_at: float = attrs.field(factory=time.monotonic, eq=False)
    """By `time.monotonic`."""

    def matches(self, solution: Solution) -> bool:
        """Whether the result is for this content."""
        return self.solution is solution or self.solution.hash() == solution.hash()


@attrs.frozen
class BuildOptions:
    """Options of one batch."""

    report: OnProgress = lambda *_: None
    is_cancelled: Callable[[], bool] = lambda: False
    jobs: int | None = None
    """Number of parallel compilers; all cores by default."""


@attrs.define
class BuildBatch:
    """Builds a batch of solutions in the background thread."""

    total: int
    get_registry: Callable[[], BuilderRegistry]
    set_result: Callable[[BuildResult], None]
    options: BuildOptions
    cache_root: Path | None
    done: int = 0
    seconds: dict[str, float] = attrs.field(factory=dict)
    """Time of compiling, by solution."""

    def build(self, pairs: list[Pair]) -> None:
        """Set a result for each pair. Exceptions of solutions become results.

        Raises:
            Cancelled: `BuildOptions.is_cancelled` returned true.
        """
        for pair in self._probed(self._compiled(pairs)):
            self._load(pair)

    def report(self, name: str, finished: int = 0) -> None:
        """Report the progress of a solution.

        Raises:
            Cancelled: `BuildOptions.is_cancelled` returned true.
        """
        self.done += finished
        self.options.report(self.done, self.total, name)
        self._check_cancelled()

    def _check_cancelled(self) -> None:
        if self.options.is_cancelled():
            raise Cancelled

    def _compiled(self, pairs: list[Pair]) -> list[Pair]:
        """The pairs that compile; the others are left out."""
        good = []
        for start in range(0, len(pairs), _COMPILE_CHUNK):
            chunk = pairs[start : start + _COMPILE_CHUNK]
            for pair, error in zip(chunk, self._compile(chunk), strict=True):
                if error is None:
                    good.append(pair)
                else:
                    self._check_cancelled()  # the compiler was killed, which says nothing about the solution
                    self._leave_out(pair, str(error), error.problem)
        return good

    def _compile(self, pairs: list[Pair]) -> list[BuildError | None]:
        from fib_compile import Limits

        def on_done(outcome: BuildOutcome) -> None:
            self.seconds[outcome.solution.name] = outcome.seconds
            self.report(outcome.solution.name)

        limits = Limits(is_stopped=self.options.is_cancelled)
        try:
            outcomes = self.get_registry().build_many(pairs, jobs=self.options.jobs, limits=limits, on_done=on_done)
        except Exception as error:  # noqa: BLE001 - raised by a builder; loading finds out which solutions it affects
            logger.warning("parallel compilation failed: %s", summarize_error(error))
            return [None] * len(pairs)
        return [outcome.error for outcome in outcomes]

    def _probed(self, pairs: list[Pair]) -> list[Pair]:
        """The pairs that are safe to load; the others are left out."""
        try:
            reasons = probe(
                pairs,
                cache_root=self.cache_root,
                on_done=lambda name, _: self.report(name),
                is_cancelled=self.options.is_cancelled,
            )
        except Exception as error:  # noqa: BLE001 - unprobed solutions are not loaded: they could end the engine
            reasons = {solution.name: f"the probe failed: {summarize_error(error)}" for _, solution in pairs}
        good = []
        for pair in pairs:
            if (reason := reasons[pair[1].name]) is None:
                good.append(pair)
            else:
                self._leave_out(pair, reason, reason)
        return good

    def _load(self, pair: Pair) -> None:
        from fib_compile import BuildError

        definition, solution = pair
        began = time.monotonic()
        try:
            runnable = self.get_registry().build(definition, solution)
        except BuildError as error:
            self._leave_out(pair, str(error), error.problem)
        except InterpreterExit:
            raise
        except BaseException as error:  # noqa: BLE001 - of the solution's module; a user's interrupt comes elsewhere
            self._leave_out(pair, summarize_error(error), summarize_error(error))
        else:
            self.set_result(BuildResult(solution, runnable, None))
            seconds = self.seconds.get(solution.name, 0.0) + time.monotonic() - began
            emit(finished(EventKind.BUILT, definition.name, solution.name, seconds))
            self.report(solution.name, finished=1)

    def _leave_out(self, pair: Pair, problem: str, summary: str) -> None:
        definition, solution = pair
        self.set_result(BuildResult(solution, None, problem))
        seconds = self.seconds.get(solution.name, 0.0)
        first_line = summary.partition("\n")[0]
        emit(finished(EventKind.BUILT, definition.name, solution.name, seconds, first_line))
        self.report(solution.name, finished=1)
