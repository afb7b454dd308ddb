"""Evaluation records: `Evaluation` objects with all fields of a trace, also for solutions whose worker was lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import fib_compile
from fib_compile.builder import INTERPRETED_LANGUAGES
from fib_schema import Correctness, Environment, Evaluation, EvaluationStatus, Performance, Solution
from fib_schema.trace_facts import CPU_TIMING, INTERPRETED, QUICK

from ..checking.precision import PrecisionWatch
from ..sandbox.model import Isolation
from ..timing.work import speed_fields
from ..worker.client import Rejected, Worker, WorkerLost
from .functions import BoundFunction
from .prepared import PreparedWorkload
from .timer import BASELINE, REFERENCE, Interleaved

_STACK = re.compile(r"(Current thread|Thread) 0x\w+ .*\(most recent call first\):$")
_FRAME = re.compile(r'  File "(?P<path>[^"]*)", line \d+,? in (?P<is_start>_start$|0x\w+$)?')
_PACKAGES = tuple(f"{folder}/" for folder in (Path(__file__).parents[1], *fib_compile.__path__))
_INTERPRETER = ("Objects/", "Python/", "Modules/", "./Include/", "./signal/", "./nptl/", "../sysdeps/", "<frozen ")
_HARNESS = (*_PACKAGES, *_INTERPRETER)
_FOLDERS = re.compile(r'(?<=  File ")/[^"\n]*?(?:/site-packages/|/(?=[^/"\n]*"))')  # of this machine, in a stack
"""The beginnings of paths in the stacks of Python's and of tvm-ffi's handlers of signals."""
_TIMINGS = ("timing", "reference_timing")


@attrs.frozen
class EvaluationRecorder:
    """Makes evaluations; `baseline` is the name of the solution that speedups are quoted against."""

    environment: Environment
    where: Mapping[str, str]
    baseline: str | None
    is_quick: bool = False

    def evaluation(
        self,
        solution: Solution,
        status: EvaluationStatus,
        log: str,
        correctness: Correctness | None = None,
        performance: Performance | None = None,
        *,
        isolation: Isolation | None,
        prepared: PreparedWorkload | None = None,
        precision: PrecisionWatch | None = None,
        flags: Sequence[str] = (),
    ) -> Evaluation:
        """An evaluation with the fields known so far."""
        extra: dict[str, object] = {"solution_hash": solution.hash(), "where": self.where}
        if prepared is not None:
            extra |= prepared.to_extra()
        if precision is not None:
            extra["precision"] = precision.to_extra()
        all_flags = [*(prepared.flags() if prepared else ()), *(precision.flags() if precision else ()), *flags]
        on_cpu = timing_flags(solution, self.environment.hardware)
        if performance is not None:
            all_flags += [*on_cpu, QUICK] if self.is_quick else on_cpu
        elif INTERPRETED in on_cpu:  # the kernel may be right on a GPU
            all_flags.append(INTERPRETED)
        if all_flags:
            extra["flags"] = list(dict.fromkeys(all_flags))
        if isolation is not None:
            extra["isolation"] = isolation.to_extra()
        return Evaluation(
            status=status,
            environment=self.environment,
            timestamp=datetime.now(UTC).isoformat(timespec="milliseconds"),
            log=log,
            correctness=correctness,
            performance=performance,
            extra=extra,
        )

    def performance(
        self, function: BoundFunction, timed: Interleaved, prepared: PreparedWorkload, *, timing: Mapping[str, object]
    ) -> Performance:
        """The latency and the latencies that it is compared with; `timing` has further fields of the timing."""
        others = timed.measurements()
        found = timed.timer.measurement()
        peaks, work = function.context.peaks, prepared.work
        if peaks is not None and work is not None and (objection := peaks.objection(work, found.latency_ms)):
            raise Rejected(EvaluationStatus.REWARD_HACK, objection)
        extra: dict[str, object] = {
            "timing": {
                **found.to_extra(),
                **timed.timer.to_extra(),
                **timing,
                "pair_exclusive_ms": round(function.context.exclusive_seconds * 1e3, 3),
                **({} if (setup_ms := function.setup_ms) is None else {"setup_ms": round(setup_ms, 4)}),
            }
        }
        if REFERENCE in others:
            extra["reference_timing"] = others[REFERENCE].to_extra()
        if self.baseline is not None and BASELINE in others:
            baseline_ms = others[BASELINE].latency_ms
            extra["baseline"] = {
                "solution": self.baseline,
                "latency_ms": baseline_ms,
                "speedup_factor": baseline_ms / found.latency_ms,
                "timing": others[BASELINE].to_extra(),
            }
        optional = {
            "not_timed": dict(timed.failures),
            "not_verified": timed.failure,
            "speed_of_light": speed_fields(peaks, work, found.latency_ms),
        }
        extra |= {name: value for name, value in optional.items() if value}
        reference_ms = others[REFERENCE].latency_ms if REFERENCE in others else 0.0
        return Performance(found.latency_ms, reference_ms, reference_ms / found.latency_ms, extra)


def of_processes(found: Sequence[Evaluation]) -> Evaluation:
    """The middle one of evaluations that passed in several processes, with intervals that span those of all."""
    performances = [each.performance for each in found if each.performance is not None]
    extras: list[Mapping[str, Any]] = [each.extra or {} for each in performances]
    middle = sorted(range(len(found)), key=lambda place: performances[place].speedup_factor)[len(found) // 2]
    extra: dict[str, Any] = dict(extras[middle])
    own, others = ([each[name]["interval_ms"] for each in extras if name in each] for name in _TIMINGS)
    extra["timing"] = {**extra["timing"], "interval_ms": _span(own), "processes": len(own)}
    if len(others) == len(own):  # else the reference has failed at times
        speedups = [(low / above, high / below) for (low, high), (below, above) in zip(others, own, strict=True)]
        spans = {"interval_ms": _span(others), "speedup_interval": _span(speedups)}
        extra["reference_timing"] = {**extra["reference_timing"], **spans}
    return attrs.evolve(found[middle], performance=attrs.evolve(performances[middle], extra=extra))


def _span(intervals: Iterable[Sequence[float]]) -> list[float]:
    lows, highs = zip(*intervals, strict=True)
    return [min(lows), max(highs)]


def timing_flags(solution: Solution, hardware: str) -> tuple[str, ...]:
    """The flags of a latency that was measured on the CPU: it is unranked, and interpreters ran Triton and Helion."""
    if hardware != "cpu":
        return ()
    return (CPU_TIMING, INTERPRETED) if solution.spec.language in INTERPRETED_LANGUAGES else (CPU_TIMING,)


def status_of(lost: WorkerLost) -> EvaluationStatus:
    """The verdict when a worker has ended."""
    if lost.is_forgery:
        return EvaluationStatus.REWARD_HACK
    return EvaluationStatus.TIMEOUT if lost.is_timeout else EvaluationStatus.RUNTIME_ERROR


def log_of(message: str, worker: Worker) -> str:
    """A message with the output of the worker, without folders of this machine in stacks."""
    printed = without_harness_frames(worker.printed())
    return _FOLDERS.sub("", f"{message}\n--- printed by the worker ---\n{printed}" if printed else message)


def without_harness_frames(text: str) -> str:
    """The output of a worker without the frames of the harness and the interpreter in the stacks of its signals."""
    kept: list[str] = []
    for line in text.splitlines(keepends=True):
        frame = _FRAME.match(line)
        is_of_harness = frame is not None and (frame["path"].startswith(_HARNESS) or frame["is_start"] is not None)
        if is_of_harness or line.startswith("Extension modules: "):
            continue
        if kept and _STACK.match(kept[-1]) and not frame:
            kept.pop()  # all frames of that thread
        kept.append(line)
    if kept and _STACK.match(kept[-1]):
        kept.pop()
    return "".join(kept)
