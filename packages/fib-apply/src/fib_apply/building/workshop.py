"""Builds solutions and loads them into this process, beside the calls of an engine and never inside one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

import attrs
from fib_compile.forking import renew_on_fork
from fib_schema import Definition, Solution

from ..log import logger
from .background import Background
from .probing import Pair
from .rounds import How, OnProgress, Result, Round, Stopped

if TYPE_CHECKING:
    from fib_compile import BuilderRegistry, Runnable

_Key: TypeAlias = tuple[str, str]


@attrs.frozen
class Progress:
    """How far a workshop is."""

    built: int
    left_out: int
    waiting: int
    """Jobs that are not done, the running one included."""
    failures: int
    """Jobs, and calls after a job, that raised."""


@attrs.define
class _Request:
    pair: Pair
    calls: list[Callable[[], None]] = attrs.field(factory=list)


class Workshop:
    """Builds the solutions of one runtime, each once.

    All of it happens in one background thread, so that an interrupt that a solution raises is told from the
    user's, which Python raises in the main thread, and a solution that hangs holds up no caller. What
    is built can be found without waiting. A solution of the same name and other content takes the place of the first.

    Args:
        registry: Builds; the one of the process by default.
        cache_root: Where the results of `probe` are cached, in place of ``FIB_CACHE_PATH``.
    """

    def __init__(self, registry: BuilderRegistry | None = None, *, cache_root: Path | None = None) -> None:
        self._registry = registry
        self._cache_root = cache_root
        self._results: dict[str, Result] = {}  # written in the background thread only
        self._background = Background()
        self._renew()
        renew_on_fork(self)

    def find(self, solution_name: str) -> Runnable | None:
        """What is built under a name, without waiting."""
        result = self._results.get(solution_name)
        return result.runnable if result else None

    def problem(self, solution_name: str) -> str | None:
        """Why a solution is left out; None if it is not, or nothing is known yet."""
        result = self._results.get(solution_name)
        return result.problem if result else None

    def left_out(self) -> dict[str, str]:
        """The solutions that are left out, and why."""
        return {name: result.problem for name, result in self._results.copy().items() if result.problem is not None}

    @property
    def progress(self) -> Progress:
        """How many are built, left out and waiting."""
        count, left_out = len(self._results), len(self.left_out())
        return Progress(count - left_out, left_out, self._background.waiting, self._background.failures)

    def build_ahead(
        self, pairs: Iterable[Pair], on_progress: OnProgress | None = None, *, jobs: int | None = None
    ) -> None:
        """Build solutions and wait for them: compiled in parallel, probed in a child process, then loaded.

        A solution that cannot be used is a warning and left out. An interrupt ends the waiting, the
        compilers, and the work after what is being probed or loaded at that moment. What was requested before comes
        first.

        Args:
            pairs: What to build; the same again costs little.
            on_progress: Called in this thread with how many are built or left out, of how many, and the
                name of the one that was last worked on.
            jobs: How many compilers at once; all cores by default.
        """
        wanted = list(pairs)
        report = on_progress or (lambda *_: None)
        if self._background.is_this_thread:  # a job that builds cannot wait for itself
            self._build(wanted, How(report, jobs=jobs))
            return
        is_stopped = threading.Event()
        try:
            for step in self._steps(wanted, is_stopped.is_set, jobs):
                report(*step)
        finally:
            is_stopped.set()

    def request(self, definition: Definition, solution: Solution, then: Callable[[], None] | None = None) -> None:
        """Build a solution in the background, unless that was done.

        Args:
            definition: What it implements.
            solution: What to build; asked for twice, it is built once.
            then: Called in the background thread afterwards, whatever became of it.
        """
        if then is None and self._asked.get(solution.name) is solution:
            return  # before it is built each call may ask, and to hash the sources takes long
        result = self._results.get(solution.name)
        if then is None and result is not None and result.is_of(solution):
            return
        key = _key(solution)
        with self._lock:
            self._asked[solution.name] = solution
            is_new = key not in self._requests
            request = self._requests.setdefault(key, _Request((definition, solution)))
            if then is not None:
                request.calls.append(then)
        if is_new:
            self._background.submit(self._serve, f"building {solution.name}", drop=lambda: self._forget(key))

    def submit(self, job: Callable[[], None], name: str) -> None:
        """Do any job in the background thread; what it raises is logged as a warning and counted."""
        self._background.submit(job, name)

    def wait(self, timeout_seconds: float) -> bool:
        """Whether nothing waits or runs in the background, within a time."""
        return self._background.wait(timeout_seconds)

    def close(self) -> None:
        """Do nothing more in the background; what runs is not waited for, and what is built stays."""
        self._background.close()

    def _renew(self) -> None:
        self._lock = threading.RLock()  # a finalizer or signal handler may ask for a solution, too
        self._requests: dict[_Key, _Request] = {}
        self._asked: dict[str, Solution] = {}

    def renew_after_fork(self) -> None:
        """Forget requests and the thread: a forked process builds none of them."""
        self._background.renew()
        self._renew()

    def _get_registry(self) -> BuilderRegistry:
        from fib_compile import BuilderRegistry

        if self._registry is None:
            self._registry = BuilderRegistry.get_instance()
        return self._registry

    def _steps(
        self, pairs: list[Pair], is_stopped: Callable[[], bool], jobs: int | None
    ) -> Iterator[tuple[int, int, str]]:
        """Build in the background; the steps as they are made."""
        steps: SimpleQueue[tuple[int, int, str] | None] = SimpleQueue()

        def build() -> None:
            try:
                self._build(pairs, How(lambda *step: steps.put(step), is_stopped, jobs))
            finally:
                steps.put(None)

        self._background.submit(build, "building ahead", drop=lambda: steps.put(None))
        while step := steps.get():
            yield step

    def _serve(self) -> None:
        """Build all that is requested by now, so that one child process probes all of it."""
        with self._lock:
            requests = dict(self._requests)
        try:
            # One compiler at a time: the engine is at work.
            self._build([request.pair for request in requests.values()], How(jobs=1))
        finally:
            for key in requests:
                self._finish(key)

    def _build(self, pairs: list[Pair], how: How) -> None:
        round = Round(len(pairs), self._get_registry, self._settle, how, self._cache_root)
        unknown = []
        try:
            for pair in pairs:
                result = self._results.get(pair[1].name)
                if result is not None and result.is_of(pair[1]):
                    self._finish(_key(pair[1]))
                    round.step(pair[1].name, done=1)
                else:
                    unknown.append(pair)
            round.build(unknown)
        except Stopped:
            logger.info("building ahead was interrupted after %d of %d solutions", round.done, round.total)

    def _settle(self, result: Result) -> None:
        self._results[result.solution.name] = result
        self._finish(_key(result.solution))

    def _finish(self, key: _Key) -> None:
        """Call those who asked for a solution."""
        request = self._forget(key)
        for call in request.calls if request else ():
            self._background.guard(call, f"what follows the building of {key[0]}")

    def _forget(self, key: _Key) -> _Request | None:
        with self._lock:
            self._asked.pop(key[0], None)
            return self._requests.pop(key, None)


def _key(solution: Solution) -> _Key:
    return solution.name, solution.hash()
