"""Build service: builds the solutions of one runtime in the background and holds the loaded ones.

A batch of solutions is compiled in parallel, probed by one child process, and loaded one by one. Solutions that compile
when they are called are also run first in a child process, which leaves compiled kernels in the disk cache of their
language. In this process only the engine calls a solution: a kernel may keep a workspace in its module, and a second
call in another thread or stream would overwrite what the engine's call reads.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from fib_schema import Definition, FibError, Solution, get_fib_cache_path
from fib_schema.files import explain_os_error

from ..config import publish, read_published
from ..events import EventKind, emit, finished, logger
from .executor import BackgroundExecutor, InterpreterExit, summarize_error
from .probe import Cancelled, Pair, ProbeResult, ProbeTask, note_name, probe, run_tasks

if TYPE_CHECKING:
    from fib_compile import BuilderRegistry, Runnable

    from .recorded_call import RecordedCall

_POLL_SECONDS = 1.0
_MAX_QUEUED_BYTES = 64 << 20
_MAX_QUEUED = 1024
_FIRST_RUN_SECONDS = 300.0
"""For one run, with compilation and tuning."""


@attrs.frozen
class BuildResult:
    """A solution with its runnable, or with the reason why it is left out."""

    solution: Solution
    runnable: Runnable | None
    problem: str | None
    finished_at: float = attrs.field(factory=time.monotonic, eq=False)
    """By `time.monotonic`."""


@attrs.define
class _Shared:
    """State that a service and its successors share."""

    executor: BackgroundExecutor
    first_runs: _FirstRunQueue
    is_building: bool = False
    capture_gate: float = math.inf
    capture_deadline: float = -math.inf
    """Reading of `time.monotonic` until which calls wait for their solutions."""


class BuildService:
    """Builds each solution of one table once.

    All builds run in one background thread. There, an interrupt raised by a solution differs from the user's,
    which Python raises in the main thread; and a solution that hangs blocks no caller. Results are read
    without waiting.
    """

    def __init__(self, registry: BuilderRegistry | None = None, *, cache_root: Path | None = None) -> None:
        self._registry = registry
        self._cache_root = cache_root
        self._results: dict[str, BuildResult] = {}  # written in the background thread only
        self._executor = BackgroundExecutor()
        self._shared = _Shared(self._executor, _FirstRunQueue(self._executor, cache_root))
        self._lock = threading.RLock()  # reentrant: a finalizer or signal handler may request a solution
        self._requests: dict[str, Pair] = {}
        """By the name of the solution."""

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

    def successor(self, load_solution: Callable[[str], Solution]) -> BuildService:
        """A service for another table, with the same thread and the results of solutions that are the same there.

        Its later results do not replace those of this one, so that calls by the earlier table go on as before.
        """
        made = BuildService(self._registry, cache_root=self._cache_root)
        for name, result in self._results.copy().items():
            with contextlib.suppress(FibError):  # it was removed, or its file cannot be read now
                if load_solution(name).hash() == result.solution.hash():
                    made._results[name] = result
        made._shared, made._executor = self._shared, self._executor
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
        return solution_name in self._requests

    def left_out(self) -> dict[str, str]:
        """The solutions that are left out, each with the reason."""
        return {name: result.problem for name, result in self._results.copy().items() if result.problem is not None}

    @property
    def pending(self) -> int:
        """Number of unfinished jobs, the running one included."""
        return self._executor.pending

    def build_ahead(self, pairs: Iterable[Pair], *, jobs: int | None = None) -> None:
        """Build solutions and wait: compile in parallel, probe in a child process, then load.

        An unusable solution is left out with a warning. An interrupt stops the wait and the compilers; what is
        being probed or loaded is finished, the rest is not started. Earlier requests are served first.
        """
        wanted, is_cancelled, is_done = list(pairs), threading.Event(), threading.Event()

        def build() -> None:
            try:
                self._build(wanted, lambda: is_cancelled.is_set() or self._executor.is_closed, jobs)
            finally:
                is_done.set()

        if self._executor.is_current_thread and not self._shared.is_building:  # a job cannot wait for itself
            build()
            return
        self._executor.submit(build, "building ahead", on_drop=is_done.set)
        if self._executor.is_current_thread:  # a solution asks for it when it is loaded, perhaps for itself
            return
        try:
            while not is_done.wait(_POLL_SECONDS):  # an interrupt that comes just before a wait does not end it
                pass
        finally:
            is_cancelled.set()

    def request(self, definition: Definition, solution: Solution) -> None:
        """Build a solution in the background, unless that was done. Repeated requests build it once."""
        name = solution.name
        with self._lock:
            if name in self._requests or name in self._results:
                return
            self._requests[name] = (definition, solution)
        on_drop = functools.partial(self._requests.pop, name, None)
        self._executor.submit(self._flush_requests, f"building {name}", on_drop=on_drop)

    def run_first(
        self,
        definition: Definition,
        solution_name: str,
        inputs: Sequence[Any],
        on_done: Callable[[ProbeResult | None], None],
    ) -> bool:
        """Run a loaded solution once in a child process, in the background.

        Returns:
            Whether the run is queued; False if copies of the inputs take too much memory.
        """
        from .recorded_call import RecordedCall, copied_bytes

        if copied_bytes(inputs) > _MAX_QUEUED_BYTES:
            return False
        solution = self._results[solution_name].solution
        self._shared.first_runs.add(_FirstRun(definition, solution, RecordedCall.of(inputs), on_done))
        return True

    def was_run(self, solution_name: str, inputs: Sequence[Any]) -> bool:
        """Whether a call of a solution with such inputs was run before, perhaps by another process.

        Its kernels are in the disk cache of their language, unless somebody has deleted them.
        """
        return self._shared.first_runs.was_run(self._results[solution_name].solution, inputs)

    def submit(self, job: Callable[[], None], name: str) -> None:
        """Run any job in the background thread. An exception is logged as a warning."""
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

    def _flush_requests(self) -> None:
        """Build all pending requests in one batch, which needs one probe process."""
        requests = list(self._requests.copy().values())
        try:
            # One compiler at a time: the engine needs the other cores.
            self._build(requests, lambda: self._executor.is_closed, 1)
        finally:
            for _, solution in requests:
                self._requests.pop(solution.name, None)

    def _build(self, pairs: list[Pair], is_cancelled: Callable[[], bool], jobs: int | None) -> None:
        """Build a batch in the background thread: each solution gets a result. Their exceptions become results."""
        unknown = [pair for pair in pairs if pair[1].name not in self._results]
        self._shared.is_building = True
        try:
            seconds: dict[str, float] = {}
            for pair in self._probed(self._compiled(unknown, seconds, is_cancelled, jobs), seconds, is_cancelled):
                if is_cancelled():
                    raise Cancelled
                self._load(pair, seconds)
        except Cancelled:
            logger.info("building ahead was interrupted")
        finally:
            self._shared.is_building = False

    def _compiled(
        self, pairs: list[Pair], seconds: dict[str, float], is_cancelled: Callable[[], bool], jobs: int | None
    ) -> list[Pair]:
        """The pairs that compile, and the time that this took by solution; the others are left out."""
        from fib_compile import Limits

        if not pairs:
            return []
        try:
            outcomes = self._get_registry().build_many(pairs, jobs=jobs, limits=Limits(is_stopped=is_cancelled))
        except Exception as error:  # noqa: BLE001 - raised by a builder; loading finds out which solutions it affects
            logger.warning("parallel compilation failed: %s", summarize_error(error))
            return pairs
        good = []
        for pair, outcome in zip(pairs, outcomes, strict=True):
            seconds[pair[1].name] = outcome.seconds
            if outcome.error is None:
                good.append(pair)
            elif is_cancelled():  # the compiler was killed, which says nothing about the solution
                raise Cancelled
            else:
                self._leave_out(pair, str(outcome.error), outcome.error.problem, outcome.seconds)
        return good

    def _probed(self, pairs: list[Pair], seconds: Mapping[str, float], is_cancelled: Callable[[], bool]) -> list[Pair]:
        """The pairs that are safe to load; the others are left out."""
        try:
            reasons = probe(pairs, cache_root=self._cache_root, is_cancelled=is_cancelled)
        except Exception as error:  # noqa: BLE001 - unprobed solutions are not loaded: they could end the engine
            reasons = {solution.name: f"the probe failed: {summarize_error(error)}" for _, solution in pairs}
        good = []
        for pair in pairs:
            if (reason := reasons[pair[1].name]) is None:
                good.append(pair)
            else:
                self._leave_out(pair, reason, reason, seconds.get(pair[1].name, 0.0))
        return good

    def _load(self, pair: Pair, seconds: Mapping[str, float]) -> None:
        from fib_compile import BuildError

        definition, solution = pair
        before, began = seconds.get(solution.name, 0.0), time.monotonic()
        try:
            runnable = self._get_registry().build(definition, solution)
        except BuildError as error:
            self._leave_out(pair, str(error), error.problem, before)
        except InterpreterExit:
            raise
        except BaseException as error:  # noqa: BLE001 - of the solution's module; a user's interrupt comes elsewhere
            self._leave_out(pair, summarize_error(error), summarize_error(error), before)
        else:
            self._set_result(BuildResult(solution, runnable, None))
            emit(finished(EventKind.BUILT, definition.name, solution.name, before + time.monotonic() - began))

    def _leave_out(self, pair: Pair, problem: str, summary: str, seconds: float) -> None:
        definition, solution = pair
        self._set_result(BuildResult(solution, None, problem))
        emit(finished(EventKind.BUILT, definition.name, solution.name, seconds, summary.partition("\n")[0]))

    def _set_result(self, result: BuildResult) -> None:
        self._results[result.solution.name] = result
        self._requests.pop(result.solution.name, None)


# -- first runs --------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class _FirstRun:
    """One run to make."""

    definition: Definition
    solution: Solution
    call: RecordedCall
    on_done: Callable[[ProbeResult | None], None]
    """Called with the result; with None if the run was dropped and may be requested again."""


class _FirstRunQueue:
    """Runs to make, within a byte budget; the oldest are dropped."""

    def __init__(self, executor: BackgroundExecutor, cache_root: Path | None = None) -> None:
        self._executor = executor
        self._cache_root = cache_root
        self._lock = threading.RLock()
        self._queued: deque[_FirstRun] = deque()
        self._queued_bytes = 0

    def add(self, run: _FirstRun) -> None:
        """Queue a run; drops the oldest ones if there are too many."""
        dropped = []
        with self._lock:
            self._queued.append(run)
            self._queued_bytes += run.call.size_bytes
            while self._queued_bytes > _MAX_QUEUED_BYTES or len(self._queued) > _MAX_QUEUED:
                dropped.append(self._queued.popleft())
                self._queued_bytes -= dropped[-1].call.size_bytes
        for other in dropped:
            other.on_done(None)
        self._executor.submit(self._run_all, f"first run of {run.solution.name}", on_drop=lambda: run.on_done(None))

    def _run_all(self) -> None:
        """Make all queued runs in one child process, or several if solutions end it."""
        with self._lock:
            runs, self._queued, self._queued_bytes = list(self._queued), deque(), 0
        if not runs:  # an earlier job has made them
            return
        tasks = [ProbeTask(run.definition, run.solution, run.call.to_line()) for run in runs]
        results = run_tasks(tasks, _FIRST_RUN_SECONDS, is_cancelled=lambda: self._executor.is_closed)
        done, began = 0, time.monotonic()
        try:
            with contextlib.closing(results):
                for run, result in zip(runs, results, strict=False):
                    done += 1
                    seconds, began = time.monotonic() - began, time.monotonic()
                    if result.reason is None:
                        self._note(run)
                    run.on_done(result)
                    names = run.definition.name, run.solution.name
                    emit(finished(EventKind.FIRST_RUN, *names, seconds, result.reason))
        finally:
            for run in runs[done:]:
                run.on_done(None)

    @property
    def _root(self) -> Path:
        return self._cache_root or get_fib_cache_path()

    def was_run(self, solution: Solution, inputs: Sequence[Any]) -> bool:
        """Whether a call of a solution with such inputs was run before, perhaps by another process."""
        from .recorded_call import sizes_of

        try:
            read_published(self._root, note_name("first-runs", solution, sizes_of(inputs)))
        except OSError:
            return False
        return True

    def _note(self, run: _FirstRun) -> None:
        """Note on the disk that a call like this was run."""
        try:
            publish(self._root, note_name("first-runs", run.solution, run.call.sizes), b"{}")
        except OSError as error:
            logger.warning("the first run of %s cannot be noted: %s", run.solution.name, explain_os_error(error))
