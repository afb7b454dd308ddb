"""What traces keep of evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import attrs
from fib_schema import Correctness, Environment, Evaluation, EvaluationStatus, Performance, Solution

from ..checking.comparison import Comparison
from ..checking.precision import PrecisionWatch
from ..config.model import ResolvedEvalConfig
from ..sandbox.policy import Isolation
from ..timing import Measurement
from ..transport.rpc import Rejected
from ..worker.client import Worker, WorkerLost
from .baselines import BASELINE, REFERENCE
from .prepared import PreparedWorkload
from .timed_function import Side

_MOST_KERNELS = 100


@attrs.frozen
class Recorder:
    """Makes evaluations.

    Args:
        environment: The hardware and the versions.
        where: The host and the device.
        baseline: The name of the solution that speedups are quoted against.
    """

    environment: Environment
    where: Mapping[str, str]
    baseline: str | None

    def evaluation(
        self,
        solution: Solution,
        status: EvaluationStatus,
        log: str,
        correctness: Correctness | None = None,
        performance: Performance | None = None,
        *,
        prepared: PreparedWorkload | None = None,
        precision: PrecisionWatch | None = None,
    ) -> Evaluation:
        """An evaluation with what is known of it so far."""
        extra: dict[str, object] = {"solution_hash": solution.hash(), "where": self.where}
        if prepared is not None:
            extra |= prepared.to_extra()
        if precision is not None:
            extra["precision"] = precision.to_extra()
        flags = [*(prepared.flags() if prepared else ()), *(precision.flags() if precision else ())]
        if flags:
            extra["flags"] = flags
        return Evaluation(
            status=status,
            environment=self.environment,
            timestamp=now(),
            log=log,
            correctness=correctness,
            performance=performance,
            extra=extra,
        )

    def performance(
        self, side: Side, others: Mapping[str, Measurement], failures: Mapping[str, str], prepared: PreparedWorkload
    ) -> Performance:
        """The latency and what it is compared with.

        Args:
            side: The solution's.
            others: Times of what was timed beside it, by roles.
            failures: Why others were not, by roles.
            prepared: The workload.
        """
        found = side.measurement()
        extra: dict[str, object] = {"timing": found.to_extra() | side.to_extra()}
        reference = others.get(REFERENCE, prepared.reference)
        if reference is not None:
            extra["reference_timing"] = reference.to_extra() | {"alternated": REFERENCE in others}
        if self.baseline is not None and BASELINE in others:
            baseline_ms = others[BASELINE].latency_ms
            extra["baseline"] = {
                "solution": self.baseline,
                "latency_ms": baseline_ms,
                "speedup_factor": baseline_ms / found.latency_ms,
                "timing": others[BASELINE].to_extra(),
            }
        if failures:
            extra["not_timed"] = dict(failures)
        reference_ms = reference.latency_ms if reference is not None else 0.0
        return Performance(found.latency_ms, reference_ms, reference_ms / found.latency_ms, extra)


def with_kernels(performance: Performance, side: Side) -> Performance:
    """The performance with names and microseconds of a call's kernels, where a profiler is installed; no verdict."""
    try:
        kernels = [[name, round(taken_ns / 1e3, 3)] for name, taken_ns in side.profile()[:_MOST_KERNELS]]
    except (Rejected, WorkerLost):
        return performance
    if not kernels:
        return performance
    return attrs.evolve(performance, extra={**(performance.extra or {}), "kernels": kernels})


def isolated(isolation: Isolation | None, evaluation: Evaluation) -> Evaluation:
    """An evaluation that says how its worker was isolated, if that is known."""
    if isolation is None:
        return evaluation
    return attrs.evolve(evaluation, extra={**(evaluation.extra or {}), "isolation": isolation.to_extra()})


def status_of(lost: WorkerLost) -> EvaluationStatus:
    """What the end of a worker makes of an evaluation."""
    if lost.is_forgery:
        return EvaluationStatus.REWARD_HACK
    return EvaluationStatus.TIMEOUT if lost.is_timeout else EvaluationStatus.RUNTIME_ERROR


def log_of(message: str, worker: Worker) -> str:
    """A message, and what the worker has printed."""
    printed = worker.printed()
    return f"{message}\n--- printed by the worker ---\n{printed}" if printed else message


def correctness_of(
    comparisons: Sequence[Comparison], config: ResolvedEvalConfig, findings: Mapping[str, object] | None = None
) -> Correctness:
    """The worst of each number, what it rests on, and what was seen in many calls together."""
    extra: dict[str, object] = {
        "atol": config.atol,
        "rtol": config.rtol,
        "required_matched_ratio": config.required_matched_ratio,
        "raw_max_relative_error": max((c.raw_max_relative_error for c in comparisons), default=0.0),
        "matched_ratio": min((c.matched_ratio for c in comparisons), default=1.0),
    }
    return Correctness(
        max_relative_error=max((c.max_relative_error for c in comparisons), default=0.0),
        max_absolute_error=max((c.max_absolute_error for c in comparisons), default=0.0),
        extra=extra | ({"together": dict(findings)} if findings else {}),
    )


def now() -> str:
    """The time, as traces state it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
