"""Standing of a submission: its verdict, and its score for the leaderboard, by the rules of fib-bench's reports.

With hidden workloads only these rank. Their part of the summary is an aggregate: it has no axes, uuids, logs or texts,
because a solution can print its inputs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from fib_bench.report import LeaderboardRow, leaderboard
from fib_schema import Definition, EvaluationStatus, Solution, Trace, TraceSet
from fib_schema.trace_facts import CPU_TIMING

_MOST_SERIOUS = (
    EvaluationStatus.REWARD_HACK,
    EvaluationStatus.COMPILE_ERROR,
    EvaluationStatus.RUNTIME_ERROR,
    EvaluationStatus.TIMEOUT,
    EvaluationStatus.INCORRECT_SHAPE,
    EvaluationStatus.INCORRECT_DTYPE,
    EvaluationStatus.INCORRECT_NUMERICAL,
    EvaluationStatus.PASSED,
)


@attrs.frozen
class Standing:
    """The columns of a submission that its traces decide."""

    verdict: str
    passed: int
    is_ranked: bool
    score: float | None
    """The number that leaderboards order by: the speedup over the reference, or its lower bound."""
    summary: Mapping[str, Any]


def standing_of(
    definition: Definition,
    solution: Solution,
    public: Sequence[Trace],
    hidden: Sequence[Trace] | None,
    *,
    allow_unranked: bool,
) -> Standing:
    """The standing that traces on public and hidden workloads give; without hidden ones, these are None."""
    allow_flags = (CPU_TIMING,) if allow_unranked else ()
    shown = _entry(definition, solution, public, allow_flags)
    deciding = shown if hidden is None else _entry(definition, solution, hidden, allow_flags)
    summary: dict[str, Any] = {"public": None if shown is None else _public(shown)}
    if hidden is not None:
        summary["hidden"] = None if deciding is None else _aggregate(deciding, hidden)
    score = _score(deciding)
    passes = all(entry is not None and entry.passed == entry.total for entry in (shown, deciding))
    return Standing(
        verdict=_verdict([*public, *(hidden or ())]),
        passed=sum(trace.is_successful() for trace in public),
        is_ranked=score is not None and passes and deciding is not None and deciding.is_ranked,
        score=score if passes else None,
        summary=summary,
    )


def _entry(
    definition: Definition, solution: Solution, traces: Sequence[Trace], allow_flags: Sequence[str]
) -> LeaderboardRow | None:
    trace_set = TraceSet(
        definitions={definition.name: definition},
        solutions={definition.name: [solution]},
        traces={definition.name: traces},
    )
    return next(iter(leaderboard(trace_set, allow_flags)), None)


def _score(entry: LeaderboardRow | None) -> float | None:
    """The number by which the report orders solutions, and which pages print."""
    return entry.speedup.rank_value if entry is not None and entry.is_ranked else None


def _public(entry: LeaderboardRow) -> dict[str, Any]:
    return {
        "speedup": entry.speedup.point,
        "speedup_text": entry.speedup.text,
        "speedup_interval": _finite(entry.speedup.interval),
        "latency_ms": _finite(entry.latency_ms),
        "timed_by": list(entry.timed_by),
        "labels": list(entry.labels),
        "flags": list(entry.flags),
        "statuses": dict(entry.statuses),
        "passed": entry.passed,
        "total": entry.total,
        "problem": entry.problem,
    }


def _finite(bounds: tuple[float, float] | None) -> list[float] | None:
    """Bounds that JSON can express, or None."""
    return list(bounds) if bounds is not None and all(map(math.isfinite, bounds)) else None


def _aggregate(entry: LeaderboardRow, traces: Sequence[Trace]) -> dict[str, Any]:
    return {
        "verdict": _verdict(traces),
        "speedup": entry.speedup.point,
        "speedup_text": entry.speedup.text,
        "labels": list(entry.labels),
    }


def _verdict(traces: Sequence[Trace]) -> str:
    """The most serious status."""
    found = Counter(trace.evaluation.status for trace in traces if trace.evaluation is not None)
    return str(next((status for status in _MOST_SERIOUS if found[status]), ""))
