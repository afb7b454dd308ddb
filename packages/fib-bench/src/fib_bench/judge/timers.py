"""Timers: the protocol for measuring the latency of a function, and the selection of a timer."""

from __future__ import annotations

from typing import Protocol

from ..config.model import ResolvedEvalConfig
from ..timing import Measurement, StopRule
from .cpu_timing import CpuTimer
from .host_timing import HostTimer
from .known_calls import BoundKnownCalls
from .linked_timing import LinkedTimer
from .prepared import PreparedWorkload
from .timed_function import TimedFunction
from .verification import FreshAnswers, Verifier


class Timer(Protocol):
    """Measures the latency of one function on one workload. Every pass is verified."""

    method: str
    """The method of the measurement: ``linked``, ``host`` or ``cpu``."""
    verifier: Verifier

    def warm_up(self, prepared: PreparedWorkload, config: ResolvedEvalConfig) -> None:
        """Load the slots and call until compilers and caches have settled.

        Raises:
            NotCapturable: Use `HostTimer` in a fresh worker.
            Rejected: The function raised.
            WorkerLost: The worker ended.
        """
        ...

    def draw_passes(self, prepared: PreparedWorkload, passes: int) -> int:
        """Draw the inputs of the next passes; returns how many can follow each other, at least one."""
        ...

    def sample(self, prepared: PreparedWorkload) -> None:
        """Time one pass; it is verified at once or by `verify`.

        Raises:
            NotCapturable: Use `HostTimer` in a fresh worker.
            Rejected: Outputs are wrong.
            WorkerLost: The worker ended.
        """
        ...

    def verify(self, prepared: PreparedWorkload) -> None:
        """Verify the passes since the last time, outside the exclusive time.

        Raises:
            NotCapturable: Use `HostTimer` in a fresh worker.
            Rejected: Outputs are wrong.
        """
        ...

    def is_done(self, rule: StopRule) -> bool:
        """Whether there are enough samples, and enough of their calls are verified."""
        ...

    def finish(self, prepared: PreparedWorkload) -> None:
        """Finish the verification that was deferred until after the exclusive time.

        Raises:
            NotCapturable: Use `HostTimer` in a fresh worker.
            Rejected: Outputs are wrong.
            WorkerLost: The worker ended.
        """
        ...

    def measurement(self, beside: object | None = None) -> Measurement:
        """The latency with its samples; there is at least one.

        Args:
            beside: For a reference: the timer of the solution that it is compared with.
        """
        ...

    def to_extra(self) -> dict[str, object]:
        """The timing fields of a trace beside the measurement."""
        ...


def make_timer(
    function: TimedFunction,
    *,
    answers: FreshAnswers | None = None,
    known: BoundKnownCalls | None = None,
    may_capture: bool = True,
    is_trusted: bool = False,
) -> Timer:
    """The timer for a function on its device.

    Args:
        function: What to time; its slots are bound.
        answers: The reference, which timed calls are verified with; None if there is none.
        known: Known calls in the same slots, which linked passes are compared with; None only warms up.
        may_capture: Whether CUDA graphs may be tried: a failed capture can leave the worker unusable.
        is_trusted: Whether the worker runs no code of a solution.
    """
    verifier = Verifier(function, answers)
    if not function.context.is_cuda:
        return CpuTimer(function, verifier)
    if not may_capture:
        return HostTimer(function, verifier, None if answers is None else answers.null_call_ns)
    timer: Timer = LinkedTimer(function, verifier, known, is_trusted=is_trusted)
    return timer
