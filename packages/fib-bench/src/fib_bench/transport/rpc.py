"""What the judge asks of a worker, and how answers become verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from fib_schema import EvaluationStatus

from ..checking.comparison import Comparison
from ..worker.client import Worker, WorkerLost
from .protocol import (
    Bind,
    Bound,
    Build,
    Built,
    Calibrate,
    Calibrated,
    Call,
    Called,
    CollectAgain,
    CollectedAgain,
    Failed,
    HasSetUp,
    Profile,
    Profiled,
    Release,
    Released,
    Repeat,
    Repeated,
    Sample,
    Sampled,
    SetUp,
    Tampered,
    Uncapturable,
    Warm,
    WarmUp,
    WorkerRequest,
    WrongOutput,
)

_MAX_REASON = 20_000  # characters; a worker keeps to less, but it is not believed
STATUS_OF_ASPECT = {
    "shape": EvaluationStatus.INCORRECT_SHAPE,
    "dtype": EvaluationStatus.INCORRECT_DTYPE,
    "kind": EvaluationStatus.RUNTIME_ERROR,
    "lazy": EvaluationStatus.REWARD_HACK,
}
"""What an output that does not fit makes of an evaluation, by what is wrong with it."""
_ANSWERS: Mapping[type, type] = {
    Build: Built,
    Calibrate: Calibrated,
    Bind: Bound,
    Release: Released,
    SetUp: HasSetUp,
    Call: Called,
    CollectAgain: CollectedAgain,
    WarmUp: Warm,
    Sample: Sampled,
    Repeat: Repeated,
    Profile: Profiled,
}
R = TypeVar("R")


class Rejected(Exception):
    """A solution's evaluation has ended without success."""

    def __init__(self, status: EvaluationStatus, message: str, comparisons: Sequence[Comparison] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.comparisons = tuple(comparisons)

    def with_evidence(self, evidence: str) -> Rejected:
        """The same as the end of a trick, if there is evidence for that and outputs are wrong."""
        if not evidence or self.status is not EvaluationStatus.INCORRECT_NUMERICAL:
            return self
        return Rejected(EvaluationStatus.REWARD_HACK, f"{evidence}\n{self.message}", self.comparisons)


class Implausible(Rejected):
    """What a worker says of its times does not hold by what the system says: a trick, unless the machine is busy."""

    def __init__(self, message: str) -> None:
        super().__init__(EvaluationStatus.REWARD_HACK, message)


class NotCapturable(Exception):
    """The function must be timed without CUDA graphs, in a fresh worker."""


def ask(
    worker: Worker, request: WorkerRequest, answer: type[R], seconds: float, descriptors: tuple[int, ...] = ()
) -> R:
    """Send a request and take the answer to it.

    Args:
        worker: Whom to ask.
        request: What.
        answer: What is answered when all goes well.
        seconds: How long to wait.
        descriptors: What travels along.

    Raises:
        Rejected: The worker reports a failure of the solution.
        NotCapturable: It cannot capture the function.
        WorkerLost: It is gone, or answers something else.
    """
    return read(worker.request(request, descriptors, seconds=seconds), request, answer)


def read(reply: object, request: WorkerRequest, answer: type[R]) -> R:
    """What a worker answers to a request; raises what `ask` does."""
    match reply:
        case Tampered(what=what):
            raise Rejected(EvaluationStatus.REWARD_HACK, f"in its process the solution {what}"[:_MAX_REASON])
        case Failed(stage="build", detail=detail):
            raise Rejected(EvaluationStatus.COMPILE_ERROR, detail[:_MAX_REASON])
        case Failed(detail=detail):
            raise Rejected(EvaluationStatus.RUNTIME_ERROR, detail[:_MAX_REASON])
        case WrongOutput(aspect=aspect, problem=problem):
            status = STATUS_OF_ASPECT.get(aspect, EvaluationStatus.RUNTIME_ERROR)
            raise Rejected(status, problem[:_MAX_REASON])
        case Uncapturable(problem=problem) if isinstance(request, WarmUp) and request.may_capture:
            raise NotCapturable(problem[:_MAX_REASON])
    if not isinstance(reply, answer) or type(reply) is not _ANSWERS[type(request)]:
        problem = f"the worker answered {type(request).__name__} with {reply!r:.200}"
        raise WorkerLost(problem, is_forgery=True)
    return reply
