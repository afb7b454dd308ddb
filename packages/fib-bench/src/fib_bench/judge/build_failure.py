"""Build attempt. Builds a solution once, in a worker of its own."""

from __future__ import annotations

from contextlib import nullcontext

import attrs
from fib_schema import EvaluationStatus

from ..sandbox.model import Isolation
from ..worker.client import WorkerLost
from .function_worker import DeviceWork, FunctionWorker
from .record import log_of, status_of
from .rpc import Rejected


@attrs.frozen
class BuildFailure:
    """A failed build, which decides all evaluations of its solution."""

    status: EvaluationStatus
    log: str
    isolation: Isolation | None = None
    """The isolation of the worker, if it was reported."""


def attempt(candidate: FunctionWorker, seconds: float, *, device_work: DeviceWork = nullcontext) -> BuildFailure | None:
    """Build a solution in its worker; returns the failure, or None.

    Args:
        candidate: A fresh worker with its build request.
        seconds: How long it may take.
        device_work: Entered while the worker makes its device context.
    """
    try:
        candidate.build(seconds, device_work)
    except Rejected as error:
        return BuildFailure(error.status, log_of(error.message, candidate.worker), candidate.worker.isolation)
    except WorkerLost as lost:
        message = f"while the solution was built: {lost}"
        return BuildFailure(status_of(lost), log_of(message, candidate.worker), candidate.worker.isolation)
    return None
