"""Runs: which kernels may be called now, as a state machine.

A `Run` is a solution together with everything that its kernels are compiled for. A kernel that compiles when it is
called is first run in a child process, and called here only after that; nothing is recorded in a CUDA graph before it
was called once. Each run is in one `RunState`; each `RunEvent` moves it as `TRANSITIONS` says. `RunTracker.refusal`
reads the state and requests what is missing.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum, StrEnum
from typing import Any, NamedTuple

import torch
from fib_schema import Definition

from ..build_service.probe import ProbeResult
from ..build_service.service import BuildService
from ..events import logger
from ..key import ApplyKey

_MAX_RUNS = 8_192


class RunState(StrEnum):
    """States of a run; the values are reasons of misses."""

    NEW = "not called yet"
    """Nothing, or it was forgotten: of too many runs the oldest are."""
    COMPILING = "being compiled"
    """A child process will make it, or makes it."""
    NOT_COMPILED = "not compiled"
    """It could not be made in a child process, for no fault of the solution: the fallback serves its calls."""
    COMPILED = "compiled"
    """Its kernels are in a cache; of languages that compile ahead of time, since the solution was loaded."""
    CALLED = "called"
    """The engine has made it."""


class RunEvent(Enum):
    """Events that change the state of a run."""

    REQUESTED = "its first run in a child process is requested"
    SUCCEEDED = "the first run has succeeded"
    FAILED = "the first run has failed, for no fault of the solution"
    DROPPED = "the first run was dropped, or the solution is to blame for its failure"
    FOUND = "an earlier process has compiled it"
    CALLED = "the engine has made it"


TRANSITIONS = {
    (RunState.NEW, RunEvent.REQUESTED): RunState.COMPILING,
    (RunState.NEW, RunEvent.SUCCEEDED): RunState.COMPILED,  # it was forgotten meanwhile
    (RunState.NEW, RunEvent.FAILED): RunState.NOT_COMPILED,  # likewise
    (RunState.NEW, RunEvent.FOUND): RunState.COMPILED,
    (RunState.COMPILING, RunEvent.SUCCEEDED): RunState.COMPILED,
    (RunState.COMPILING, RunEvent.FAILED): RunState.NOT_COMPILED,
    (RunState.COMPILING, RunEvent.DROPPED): RunState.NEW,
    (RunState.COMPILING, RunEvent.FOUND): RunState.COMPILED,
    (RunState.NOT_COMPILED, RunEvent.FOUND): RunState.COMPILED,
    (RunState.COMPILED, RunEvent.CALLED): RunState.CALLED,
}
"""The next state. An event that is not listed for a state changes nothing: a run that was called stays so."""

_READY = (RunState.COMPILED, RunState.CALLED)


class Run(NamedTuple):
    """A solution and what its kernels are compiled for."""

    solution: str
    key: ApplyKey
    device: str
    specializations: tuple[Any, ...] | None = None
    """Properties of scalars on which kernels specialize; None for languages that compile ahead of time."""

    @property
    def compiles_when_called(self) -> bool:
        """Whether the first call compiles kernels."""
        return self.specializations is not None


class _Record(NamedTuple):
    state: RunState
    ready_at: float
    """Time of `time.monotonic` since which it is compiled; captures record what was ready at the last warm-up."""


class RunTracker:
    """The runs of one definition.

    Args:
        definition: The definition.
        build_service: Loads solutions and makes first runs.
        quarantine: Called with a solution and the reason if its first run fails each time.
    """

    def __init__(
        self,
        definition: Definition,
        build_service: BuildService,
        quarantine: Callable[[str, str], None],
    ) -> None:
        self._definition, self._service = definition, build_service
        self._quarantine = quarantine
        self._arity = len(definition.inputs)
        self._records: dict[Run, _Record] = {}
        self._lock = threading.RLock()  # reentrant: a signal handler may make calls

    def refusal(self, run: Run, args: Sequence[Any], *, may_capture: bool) -> str | None:
        """Reason why the engine must not make a run now; None if it may. Requests a first run that is missing.

        Args:
            run: The run.
            args: Of the call.
            may_capture: Whether CUDA graphs may hold the solution at all.
        """
        if is_capturing(run.device) and not (may_capture and self._may_be_captured_now(run)):
            return "capturing"
        if not run.compiles_when_called:
            return None
        state = self.state(run)
        if state not in _READY and self._was_made_earlier(run, args):
            state = self._advance(run, RunEvent.FOUND)
        if state is RunState.NEW:
            state = self._request(run, args)
        if state is RunState.COMPILING and self.has_waited(run.device):
            state = self.state(run)
        return None if state in _READY else state.value

    def state(self, run: Run) -> RunState:
        """The state of a run."""
        return self._record(run).state

    def is_before_captures(self, run: Run) -> bool:
        """Whether a run was ready at the last warm-up, so that captures may record it once it was made."""
        return self._record(run).ready_at <= self._service.capture_gate

    def _may_be_captured_now(self, run: Run) -> bool:
        return self.state(run) is RunState.CALLED and self.is_before_captures(run)

    def mark_called(self, run: Run) -> None:
        """Note that the engine has made a run."""
        self._advance(run, RunEvent.CALLED)

    def has_waited(self, device: str) -> bool:
        """Wait for builds and first runs, if captures are prepared; whether all are finished."""
        return not is_capturing(device) and self._service.wait_for_captures()

    def problem(self, solution: str, is_asked: Callable[[Run], bool]) -> str | None:
        """State of the kernels of a solution that are not compiled; None if they are.

        Args:
            solution: The solution.
            is_asked: Whether a run is of the key in question.
        """
        records = self._records.copy().items()
        states = {record.state for run, record in records if run.solution == solution and is_asked(run)}
        if states.intersection(_READY):
            return None
        for state in (RunState.COMPILING, RunState.NOT_COMPILED):
            if state in states:
                return state.value
        return RunState.NEW.value

    def _record(self, run: Run) -> _Record:
        """The state of a run. A solution that compiles ahead of time is compiled since it was loaded."""
        found = self._records.get(run)
        if found is not None:
            return found
        state = RunState.NEW if run.compiles_when_called else RunState.COMPILED
        return _Record(state, self._service.loaded_at(run.solution))

    def _advance(self, run: Run, event: RunEvent, ready_at: float | None = None) -> RunState:
        """Move a run to its next state, and return that.

        Args:
            run: The run.
            event: What happened.
            ready_at: Since when it is compiled, where the event says so.
        """
        with self._lock:
            found = self._record(run)
            state = TRANSITIONS.get((found.state, event), found.state)
            if state is not found.state:
                self._put(run, _Record(state, found.ready_at if ready_at is None else ready_at))
            return state

    def _put(self, run: Run, record: _Record) -> None:
        if len(self._records) >= _MAX_RUNS and run not in self._records:
            for old in list(itertools.islice(self._records, _MAX_RUNS // 2)):
                self._records.pop(old, None)
        self._records[run] = record

    def _request(self, run: Run, args: Sequence[Any]) -> RunState:
        """Request the first run in a child process, if no other thread did."""
        with self._lock:
            is_first = self.state(run) is RunState.NEW
            state = self._advance(run, RunEvent.REQUESTED)
        if not is_first:
            return state

        def on_done(verdict: ProbeResult | None) -> None:
            if verdict is None:
                self._advance(run, RunEvent.DROPPED)
            elif verdict.reason is None:
                self._advance(run, RunEvent.SUCCEEDED, time.monotonic())
            elif verdict.is_reproducible:
                self._advance(run, RunEvent.DROPPED)
                self._quarantine(run.solution, f"its first run failed: {verdict.reason}")
            else:
                self._leave_uncompiled(run, verdict.reason)

        if self._service.run_first(self._definition, run.solution, args[: self._arity], on_done):
            return state
        self._leave_uncompiled(run, "its integer inputs are too large to be copied")
        return RunState.NOT_COMPILED

    def _leave_uncompiled(self, run: Run, reason: str) -> None:
        """Leave calls like this to the fallback; the solution is not to blame."""
        self._advance(run, RunEvent.FAILED)
        what = f"{self._definition.name}: {run.solution} is not used for {run.key}"
        logger.warning("%s, because it could not be run first: %s", what, reason)

    def _was_made_earlier(self, run: Run, args: Sequence[Any]) -> bool:
        """Whether an earlier process has made a run; asked where captures are prepared, as kernels may be deleted."""
        return self._service.prepares_captures and self._service.was_run(run.solution, args[: self._arity])


def is_capturing(device: str) -> bool:
    """Whether a CUDA graph is being captured in the current stream."""
    return device.startswith("cuda") and torch.cuda.is_current_stream_capturing()
