"""Build service: builds the solutions of one runtime in the background and holds the loaded ones."""

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
from .batch import BuildBatch, BuildCancelled, BuildOptions, BuildResult, OnProgress
from .executor import BackgroundExecutor
from .probe import Pair

if TYPE_CHECKING:
    from fib_compile import BuilderRegistry, Runnable

_Key: TypeAlias = tuple[str, str]


@attrs.frozen
class Progress:
    """Counts of a build service."""

    built: int
    left_out: int
    pending: int
    """Unfinished jobs, the running one included."""
    failures: int
    """Jobs and callbacks that raised."""


@attrs.define
class _Request:
    pair: Pair
    callbacks: list[Callable[[], None]] = attrs.field(factory=list)


class BuildService:
    """Builds each solution once.

    All builds run in one background thread. There, an interrupt raised by a solution differs from the user's,
    which Python raises in the main thread; and a solution that hangs blocks no caller. Results are read
    without waiting. A solution with the name of another and new content replaces it.

    Args:
        registry: Builds solutions; the registry of the process by default.
        cache_root: Where probe verdicts are cached, in place of ``FIB_CACHE_PATH``.
    """

    def __init__(self, registry: BuilderRegistry | None = None, *, cache_root: Path | None = None) -> None:
        self._registry = registry
        self._cache_root = cache_root
        self._results: dict[str, BuildResult] = {}  # written in the background thread only
        self._executor = BackgroundExecutor()
        self.renew_after_fork()
        renew_on_fork(self)

    def renew_after_fork(self) -> None:
        """Forget requests: the thread that would serve them is gone."""
        self._lock = threading.RLock()  # reentrant: a finalizer or signal handler may request a solution
        self._requests: dict[_Key, _Request] = {}
        self._requested: dict[str, Solution] = {}

    def find(self, solution_name: str) -> Runnable | None:
        """The loaded solution of a name, without waiting."""
        result = self._results.get(solution_name)
        return result.runnable if result else None

    def problem(self, solution_name: str) -> str | None:
        """Why a solution is left out; None if it is usable or has no result yet."""
        result = self._results.get(solution_name)
        return result.problem if result else None

    def left_out(self) -> dict[str, str]:
        """The solutions that are left out, each with the reason."""
        return {name: result.problem for name, result in self._results.copy().items() if result.problem is not None}

    @property
    def progress(self) -> Progress:
        """The current counts."""
        count, left_out = len(self._results), len(self.left_out())
        return Progress(count - left_out, left_out, self._executor.pending, self._executor.failures)

    def build_ahead(
        self, pairs: Iterable[Pair], on_progress: OnProgress | None = None, *, jobs: int | None = None
    ) -> None:
        """Build solutions and wait: compile in parallel, probe in a child process, then load.

        An unusable solution is left out with a warning. An interrupt stops the wait and the compilers; what is
        being probed or loaded is finished, the rest is not started. Earlier requests are served first.

        Args:
            pairs: What to build. Building the same again is cheap.
            on_progress: Called in this thread after each step.
            jobs: Number of parallel compilers; all cores by default.
        """
        wanted = list(pairs)
        report = on_progress or (lambda *_: None)
        if self._executor.is_current_thread:  # a job that builds cannot wait for itself
            self._build(wanted, BuildOptions(report, jobs=jobs))
            return
        is_cancelled = threading.Event()
        try:
            for step in self._steps(wanted, is_cancelled.is_set, jobs):
                report(*step)
        finally:
            is_cancelled.set()

    def request(self, definition: Definition, solution: Solution, then: Callable[[], None] | None = None) -> None:
        """Build a solution in the background, unless that was done.

        Args:
            definition: What the solution implements.
            solution: What to build. Repeated requests build it once.
            then: Called in the background thread when the result is set, whatever it is.
        """
        if then is None and self._requested.get(solution.name) is solution:
            return  # each call may request it until it is built, and hashing its sources takes long
        result = self._results.get(solution.name)
        if then is None and result is not None and result.matches(solution):
            return
        key = _key(solution)
        with self._lock:
            self._requested[solution.name] = solution
            is_new = key not in self._requests
            request = self._requests.setdefault(key, _Request((definition, solution)))
            if then is not None:
                request.callbacks.append(then)
        if is_new:
            self._executor.submit(
                self._flush_requests, f"building {solution.name}", on_drop=lambda: self._pop_request(key)
            )

    def submit(self, job: Callable[[], None], name: str) -> None:
        """Run any job in the background thread. An exception is logged as a warning and counted."""
        self._executor.submit(job, name)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until no job is pending; returns whether that happened in time."""
        return self._executor.wait(timeout_seconds)

    def close(self) -> None:
        """Start no more jobs. The running job is not waited for; loaded solutions stay."""
        self._executor.close()

    def _get_registry(self) -> BuilderRegistry:
        from fib_compile import BuilderRegistry

        if self._registry is None:
            self._registry = BuilderRegistry.get_instance()
        return self._registry

    def _steps(
        self, pairs: list[Pair], is_cancelled: Callable[[], bool], jobs: int | None
    ) -> Iterator[tuple[int, int, str]]:
        """Build in the background, and yield each step."""
        steps: SimpleQueue[tuple[int, int, str] | None] = SimpleQueue()

        def build() -> None:
            try:
                self._build(pairs, BuildOptions(lambda *step: steps.put(step), is_cancelled, jobs))
            finally:
                steps.put(None)

        self._executor.submit(build, "building ahead", on_drop=lambda: steps.put(None))
        while step := steps.get():
            yield step

    def _flush_requests(self) -> None:
        """Build all pending requests in one batch, which needs one probe process."""
        with self._lock:
            requests = dict(self._requests)
        try:
            # One compiler at a time: the engine needs the other cores.
            self._build([request.pair for request in requests.values()], BuildOptions(jobs=1))
        finally:
            for key in requests:
                self._call_back(key)

    def _build(self, pairs: list[Pair], options: BuildOptions) -> None:
        batch = BuildBatch(len(pairs), self._get_registry, self._set_result, options, self._cache_root)
        unknown = []
        try:
            for pair in pairs:
                result = self._results.get(pair[1].name)
                if result is not None and result.matches(pair[1]):
                    self._call_back(_key(pair[1]))
                    batch.report(pair[1].name, finished=1)
                else:
                    unknown.append(pair)
            batch.build(unknown)
        except BuildCancelled:
            logger.info("building ahead was interrupted after %d of %d solutions", batch.done, batch.total)

    def _set_result(self, result: BuildResult) -> None:
        self._results[result.solution.name] = result
        self._call_back(_key(result.solution))

    def _call_back(self, key: _Key) -> None:
        request = self._pop_request(key)
        for callback in request.callbacks if request else ():
            self._executor.run_guarded(callback, f"the callback for solution {key[0]}")

    def _pop_request(self, key: _Key) -> _Request | None:
        with self._lock:
            self._requested.pop(key[0], None)
            return self._requests.pop(key, None)


def _key(solution: Solution) -> _Key:
    return solution.name, solution.hash()
