"""Remote procedure calls. Requests of the judge to a worker, and how replies become verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from fib_schema import EvaluationStatus

from ..checking.comparison import Comparison
from ..transport.messages import ComposePass, Failed, Tampered, Uncapturable, WorkerRequest, WrongOutput
from ..worker.client import Worker, WorkerLost

_MAX_REASON = 20_000  # characters; a worker keeps to less, but it is not believed
STATUS_OF_ASPECT = {
    "shape": EvaluationStatus.INCORRECT_SHAPE,
    "dtype": EvaluationStatus.INCORRECT_DTYPE,
    "kind": EvaluationStatus.RUNTIME_ERROR,
    "lazy": EvaluationStatus.REWARD_HACK,
}
"""The verdict on an output that does not fit the definition, by kind of mismatch."""
R = TypeVar("R")


class Rejected(Exception):
    """A solution's evaluation has ended without success."""

    def __init__(self, status: EvaluationStatus, message: str, comparisons: Sequence[Comparison] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.comparisons = tuple(comparisons)

    def with_evidence(self, evidence: str) -> Rejected:
        """Return the rejection as `REWARD_HACK` if outputs are wrong and there is evidence for an exploit."""
        if not evidence or self.status is not EvaluationStatus.INCORRECT_NUMERICAL:
            return self
        return Rejected(EvaluationStatus.REWARD_HACK, f"{evidence}\n{self.message}", self.comparisons)


class NotCapturable(Exception):
    """The function must be timed without CUDA graphs, in a fresh worker."""


def ask(
    worker: Worker, request: WorkerRequest, answer: type[R], seconds: float, descriptors: tuple[int, ...] = ()
) -> R:
    """Send a request and return the reply.

    Args:
        worker: The worker.
        request: The request.
        answer: The type of a successful reply.
        seconds: How long to wait.
        descriptors: File descriptors that travel with the request.

    Raises:
        Rejected: The worker reports a failure of the solution.
        NotCapturable: It cannot capture the function.
        WorkerLost: It is gone, or answers something else.
    """
    return check_reply(worker.request(request, descriptors, seconds=seconds), request, answer)


def check_reply(reply: object, request: WorkerRequest, answer: type[R]) -> R:
    """Check a reply to a request; raises like `ask`."""
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
        case Uncapturable(problem=problem) if isinstance(request, ComposePass):
            raise NotCapturable(problem[:_MAX_REASON])
    if not isinstance(reply, answer):
        problem = f"the worker answered {type(request).__name__} with {reply!r:.200}"
        raise WorkerLost(problem, is_forgery=True)
    return reply
