"""First runs: calls of solutions that compile when they are called, made in a child process before the engine's.

The child leaves compiled kernels in the disk cache of their language, from which this process then loads them. In
this process, only the engine calls a solution: a kernel may keep a workspace in its module, and a second call in
another thread or stream would overwrite what the engine's call reads.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from fib_compile.device import library_versions
from fib_compile.forking import ForkSafeLock, renew_on_fork
from fib_schema import Definition, Solution, get_fib_cache_path
from fib_schema.files import explain_os_error
from fib_schema.framing import framed

from ..cache_files import publish, read_published
from ..events import EventKind, emit, finished
from ..log import logger
from .executor import BackgroundExecutor
from .probe_process import Job, Verdict, run_jobs

if TYPE_CHECKING:
    from .recorded_call import RecordedCall

_MAX_QUEUED_BYTES = 64 << 20
_MAX_QUEUED = 1024
_TIMEOUT_SECONDS = 300.0
"""For one run, with compilation and tuning."""


@attrs.frozen(eq=False)
class FirstRun:
    """One run to make."""

    definition: Definition
    solution: Solution
    call: RecordedCall
    on_done: Callable[[Verdict | None], None]
    """Called with the verdict; with None if the run was dropped and may be requested again."""


class FirstRunQueue:
    """Runs to make, within a byte budget; the oldest are dropped.

    Args:
        executor: Its thread starts the child process and waits for it.
        cache_root: Where runs are noted, in place of ``FIB_CACHE_PATH``.
    """

    def __init__(self, executor: BackgroundExecutor, cache_root: Path | None = None) -> None:
        self._executor = executor
        self._cache_root = cache_root
        self._lock = ForkSafeLock()
        self.renew_after_fork()
        renew_on_fork(self)

    def renew_after_fork(self) -> None:
        """Forget all runs: the thread that would make them is gone."""
        self._queued: deque[FirstRun] = deque()
        self._queued_bytes = 0

    @staticmethod
    def accepts(size_bytes: int) -> bool:
        """Whether a run with copies of this size can be queued at all."""
        return size_bytes <= _MAX_QUEUED_BYTES

    def add(self, run: FirstRun) -> None:
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
        verdicts = run_jobs(
            [Job(run.definition, run.solution, run.call.to_json()) for run in runs],
            _TIMEOUT_SECONDS,
            is_cancelled=lambda: self._executor.is_closed,
        )
        done, began = 0, time.monotonic()
        try:
            with contextlib.closing(verdicts):
                for run, verdict in zip(runs, verdicts, strict=False):
                    done += 1
                    seconds, began = time.monotonic() - began, time.monotonic()
                    if verdict.reason is None:
                        self._note(run)
                    run.on_done(verdict)
                    names = run.definition.name, run.solution.name
                    emit(finished(EventKind.FIRST_RUN, *names, seconds, verdict.reason))
        finally:
            for run in runs[done:]:
                run.on_done(None)

    def was_run(self, solution: Solution, inputs: Sequence[Any]) -> bool:
        """Whether a call of a solution with such inputs was run before, perhaps by another process."""
        from .recorded_call import sizes_of

        try:
            read_published(self._cache_root or get_fib_cache_path(), _note_name(solution, sizes_of(inputs)))
        except OSError:
            return False
        return True

    def _note(self, run: FirstRun) -> None:
        """Note on the disk that a call like this was run."""
        try:
            publish(self._cache_root or get_fib_cache_path(), _note_name(run.solution, run.call.sizes), b"{}")
        except OSError as error:
            logger.warning("the first run of %s cannot be noted: %s", run.solution.name, explain_os_error(error))


def _note_name(solution: Solution, sizes: str) -> str:
    versions = (part for item in sorted(library_versions().items()) for part in item)
    return f"first-runs/{blake2b(framed((solution.hash(), sizes, *versions)), digest_size=20).hexdigest()}.json"
