"""Build service: builds the solutions of one runtime in the background and holds the loaded ones."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
from fib_compile.forking import renew_on_fork
from fib_schema import Definition, Solution

from ..log import logger
from .batch import BuildBatch, BuildOptions, BuildResult, OnProgress
from .executor import BackgroundExecutor
from .first_runs import FirstRun, FirstRunQueue
from .probe import Pair
from .probe_process import Cancelled, Verdict

if TYPE_CHECKING:
    from fib_compile import BuilderRegistry, Runnable

_POLL_SECONDS = 1.0
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


@attrs.define
class _Shared:
    """State that a service and its successors share."""

    executor: BackgroundExecutor = attrs.field(factory=BackgroundExecutor)
    is_building: bool = False
    capture_gate: float = math.inf
    capture_deadline: float = -math.inf
    """Reading of `time.monotonic` until which calls wait for their solutions."""


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
        self._shared = _Shared()
        self._executor = self._shared.executor
        self._first_runs = FirstRunQueue(self._executor, cache_root)
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
        """Reason for leaving a solution out; None if it is usable or has no result yet."""
        result = self._results.get(solution_name)
        return result.problem if result else None

    def loaded_at(self, solution_name: str) -> float:
        """Time at which a loaded solution was loaded, by `time.monotonic`."""
        return self._results[solution_name].finished_at

    def compiles_when_called(self, solution_name: str) -> bool:
        """Whether a solution compiles kernels for the arguments of its calls."""
        result = self._results.get(solution_name)
        return result is not None and result.solution.spec.language.is_embedded

    def successor(self) -> BuildService:
        """A service for another table, with the same thread and results.

        Its later results do not replace those of this one, so that calls by the earlier table go on as before.
        """
        made = BuildService(self._registry, cache_root=self._cache_root)
        made._results = self._results.copy()
        made._shared, made._executor, made._first_runs = self._shared, self._executor, self._first_runs
        return made

    @property
    def capture_gate(self) -> float:
        """Latest `time.monotonic` of readiness for a capture; infinite until the first warm-up."""
        return self._shared.capture_gate

    def open_capture_gate(self, seconds: float) -> None:
        """Let captures record what becomes ready from now on, and calls wait for it until a deadline."""
        self._shared.capture_gate = math.inf
        self._shared.capture_deadline = time.monotonic() + seconds

    def close_capture_gate(self) -> None:
        """Let captures of CUDA graphs record only what is ready now, and calls wait for nothing."""
        self._shared.capture_gate = time.monotonic()
        self._shared.capture_deadline = -math.inf

    @property
    def prepares_captures(self) -> bool:
        """Whether calls wait for their solutions now."""
        return time.monotonic() < self._shared.capture_deadline

    def wait_for_captures(self) -> bool:
        """Wait for all jobs, if calls wait now; returns whether none is pending."""
        if not self.prepares_captures or self._executor.is_current_thread:
            return False
        return self.wait(self._shared.capture_deadline - time.monotonic())

    def is_requested(self, solution_name: str) -> bool:
        """Whether a solution waits for its build, or is being built."""
        return solution_name in self._requested

    def left_out(self) -> dict[str, str]:
        """The solutions that are left out, each with the reason."""
        return {name: result.problem for name, result in self._results.copy().items() if result.problem is not None}

    def loaded(self) -> dict[str, tuple[Solution, Runnable]]:
        """The loaded solutions by name."""
        found = self._results.copy().items()
        return {name: (result.solution, result.runnable) for name, result in found if result.runnable is not None}

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
            build = functools.partial(self._build, wanted, BuildOptions(report, lambda: self._executor.is_closed, jobs))
            if self._shared.is_building:  # a solution asks for it when it is loaded, perhaps for itself
                self._executor.submit(build, "building ahead")
            else:
                build()
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

    def run_first(
        self,
        definition: Definition,
        solution_name: str,
        inputs: Sequence[Any],
        on_done: Callable[[Verdict | None], None],
    ) -> bool:
        """Run a loaded solution once in a child process, in the background.

        Args:
            definition: What the solution implements.
            solution_name: The solution.
            inputs: Of the call; integers are copied now, in the caller's stream.
            on_done: Called in any thread with the verdict; with None if the run was dropped.

        Returns:
            Whether the run is queued; False if copies of the inputs take too much memory.
        """
        from .recorded_call import RecordedCall, copied_bytes

        if not self._first_runs.accepts(copied_bytes(inputs)):
            return False
        solution = self._results[solution_name].solution
        self._first_runs.add(FirstRun(definition, solution, RecordedCall.of(inputs), on_done))
        return True

    def was_run(self, solution_name: str, inputs: Sequence[Any]) -> bool:
        """Whether a call of a solution with such inputs was run before, perhaps by another process.

        Its kernels are in the disk cache of their language, unless somebody has deleted them.
        """
        return self._first_runs.was_run(self._results[solution_name].solution, inputs)

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
                options = BuildOptions(
                    lambda *step: steps.put(step), lambda: is_cancelled() or self._executor.is_closed, jobs
                )
                self._build(pairs, options)
            finally:
                steps.put(None)

        self._executor.submit(build, "building ahead", on_drop=lambda: steps.put(None))
        while True:
            try:
                step = steps.get(timeout=_POLL_SECONDS)
            except Empty:  # an interrupt that comes just before a wait does not end it
                continue
            if step is None:
                return
            yield step

    def _flush_requests(self) -> None:
        """Build all pending requests in one batch, which needs one probe process."""
        with self._lock:
            requests = dict(self._requests)
        try:
            # One compiler at a time: the engine needs the other cores.
            options = BuildOptions(is_cancelled=lambda: self._executor.is_closed, jobs=1)
            self._build([request.pair for request in requests.values()], options)
        finally:
            for key in requests:
                self._call_back(key)

    def _build(self, pairs: list[Pair], options: BuildOptions) -> None:
        batch = BuildBatch(len(pairs), self._get_registry, self._set_result, options, self._cache_root)
        unknown = []
        self._shared.is_building = True
        try:
            for pair in pairs:
                result = self._results.get(pair[1].name)
                if result is not None and result.matches(pair[1]):
                    self._call_back(_key(pair[1]))
                    batch.report(pair[1].name, finished=1)
                else:
                    unknown.append(pair)
            batch.build(unknown)
        except Cancelled:
            logger.info("building ahead was interrupted after %d of %d solutions", batch.done, batch.total)
        finally:
            self._shared.is_building = False

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
