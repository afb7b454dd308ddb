"""What traces say of solutions on one workload: which evaluation counts, and what it is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import attrs
from fib_schema import Evaluation, EvaluationStatus, Performance, Trace, Workload

from ..config import ApplyConfig
from ..key import ApplyKey, ApplyKeyBuilder

Tolerance: TypeAlias = tuple[float | None, float | None, float | None]
Run: TypeAlias = tuple[str, dict[str, Trace]]
"""A workload's uuid, and the evaluation that counts for each solution."""

_NO_TOLERANCE: Tolerance = (None, None, None)
_TOLERANCE_FIELDS = ("atol", "rtol", "required_matched_ratio")
_PASSED = EvaluationStatus.PASSED
_REWARD_HACK = EvaluationStatus.REWARD_HACK
_PLAIN = (str, int, float, bool, type(None))


@attrs.frozen
class Rules:
    """Those settings that decide which solution is chosen; a table is as good as another with the same."""

    max_atol: float | None
    max_rtol: float | None
    baseline: str | None
    margin: float

    @classmethod
    def from_config(cls, config: ApplyConfig) -> Rules:
        """The rules among the settings."""
        return cls(config.max_atol, config.max_rtol, config.baseline, config.margin)

    @property
    def without_bounds(self) -> Rules:
        """Rules for the baseline, which serves whatever its errors are."""
        return attrs.evolve(self, max_atol=None, max_rtol=None)


class Measurement(NamedTuple):
    """A solution's latency on one workload. No attrs class: 200,000 of them are made for a table."""

    latency_ms: float
    interval_ms: tuple[float, float] | None
    has_setup: bool
    tolerance: Tolerance
    may_capture: bool = True


@attrs.define
class Latest:
    """The evaluations that count."""

    runs: dict[str, dict[str, dict[str, Trace]]] = attrs.field(factory=dict)
    """By hardware, workload uuid and solution."""
    cheats: set[str] = attrs.field(factory=set)
    """Solutions with an evaluation that says REWARD_HACK."""
    set_aside: list[tuple[Trace, str]] = attrs.field(factory=list)
    """Traces that do not count, with the reason."""


def latest_evaluations(traces: Iterable[Trace], hashes: Mapping[str, str]) -> Latest:
    """Fold traces into the latest of each solution on each workload and hardware.

    Args:
        traces: In the order in which they were appended, which decides between equal times.
        hashes: The hash of each known solution.
    """
    found = Latest()
    runs = found.runs
    for trace in traces:
        evaluation, name = trace.evaluation, trace.solution
        if evaluation is None or name is None:
            continue
        is_foreign = evaluation.extra is not None or name not in hashes
        if is_foreign and (reason := _foreign(evaluation, hashes.get(name))):
            found.set_aside.append((trace, reason))
            continue
        status = evaluation.status
        if status != _PASSED and status == _REWARD_HACK:
            found.cheats.add(name)
        uuid = trace.workload.uuid
        try:
            run = runs[evaluation.environment.hardware][uuid]
        except KeyError:
            run = runs.setdefault(evaluation.environment.hardware, {}).setdefault(uuid, {})
        if name not in run or not _is_later(run[name].evaluation, evaluation):
            run[name] = trace
    return found


def _foreign(evaluation: Evaluation, known: str | None) -> str:
    """Why an evaluation says nothing of a solution that is at hand; empty if it does."""
    if known is None:
        return "there is no such solution, or its file is damaged"
    measured = None if evaluation.extra is None else evaluation.extra.get("solution_hash")
    return "" if measured in (None, known) else "only another version of it was measured"


def _is_later(first: Evaluation | None, second: Evaluation) -> bool:
    """Whether the first ended after the second, which was appended after it."""
    if first is None or first.timestamp == second.timestamp:
        return False
    return _instant(first.timestamp) > _instant(second.timestamp)


@lru_cache(maxsize=10_000)
def _instant(timestamp: str) -> float:
    """Seconds since the epoch; texts that tell no time are before all others."""
    try:
        parsed = datetime.fromisoformat(timestamp)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return -math.inf


class Keys:
    """The keys of workloads, each built once.

    Args:
        builder: Makes them.
    """

    def __init__(self, builder: ApplyKeyBuilder) -> None:
        self.problems: list[str] = []
        self._builder = builder
        self._of_workload: dict[int, ApplyKey | None] = {}
        self._of_axes: dict[tuple[tuple[str, int], ...], ApplyKey | None] = {}

    def of(self, workload: Workload) -> ApplyKey | None:
        """The key of a workload that lives as long as this object; None if it has none, which is noted."""
        identity = id(workload)
        if identity not in self._of_workload:
            self._of_workload[identity] = self._by_axes(workload) if self._builder.is_by_shape else self._new(workload)
        return self._of_workload[identity]

    def _by_axes(self, workload: Workload) -> ApplyKey | None:
        axes = tuple(workload.axes.items())
        if axes not in self._of_axes:
            self._of_axes[axes] = self._new(workload)
        return self._of_axes[axes]

    def _new(self, workload: Workload) -> ApplyKey | None:
        try:
            key = self._builder.build_from_workload(workload)
            problem = _key_problem(key)
        except Exception as error:  # noqa: BLE001 a registered builder may raise anything; it is reported
            key, problem = ApplyKey(), f"has no key: {type(error).__name__}: {error}"
        if problem:
            self.problems.append(f"{self._builder.definition.name}: workload {workload.uuid!r} {problem}")
            return None
        return key

    def runs_by_key(self, runs: Mapping[str, dict[str, Trace]]) -> dict[ApplyKey, list[Run]]:
        """The runs of one hardware by key. Two workloads that share a uuid, against the rules, are kept apart."""
        groups: dict[ApplyKey, list[Run]] = {}
        for uuid, run in runs.items():
            for workload, part in _by_workload(run):
                if (key := self.of(workload)) is not None:
                    groups.setdefault(key, []).append((uuid, part))
        return groups


def _by_workload(run: dict[str, Trace]) -> list[tuple[Workload, dict[str, Trace]]]:
    parts: list[tuple[Workload, dict[str, Trace]]] = []
    for name, trace in run.items():
        for workload, part in parts:
            if workload is trace.workload or workload == trace.workload:
                part[name] = trace
                break
        else:
            parts.append((trace.workload, {name: trace}))
    return parts


def _key_problem(key: object) -> str:
    """Why a key cannot be kept in a file and found again."""
    if not isinstance(key, ApplyKey):
        return f"has no key: its builder made a {type(key).__name__}"
    for name, value in (*key.axes, *key.feats):
        is_huge = isinstance(value, int) and not -(2**63) <= value < 2**63
        if not isinstance(value, _PLAIN) or value != value or is_huge:
            return f"has an unusable key: {name} is {value!r:.60}, and must be a number, text, a truth value or None"
    return ""


def measure(evaluation: Evaluation | None, rules: Rules) -> Measurement | str:
    """What an evaluation is worth, or why it is worth nothing."""
    if evaluation is None:
        return "no evaluation"
    performance, correctness = evaluation.performance, evaluation.correctness
    if evaluation.status != _PASSED or performance is None or correctness is None:
        return str(evaluation.status)
    if evaluation.extra is not None and not evaluation.is_ranked():
        return "flagged " + ", ".join(map(str, evaluation.flags))
    if rules.max_atol is not None and not correctness.max_absolute_error <= rules.max_atol:
        return f"absolute error {correctness.max_absolute_error:g} above {rules.max_atol:g}"
    if rules.max_rtol is not None and not correctness.max_relative_error <= rules.max_rtol:
        return f"relative error {correctness.max_relative_error:g} above {rules.max_rtol:g}"
    latency = performance.latency_ms
    if not 0.0 < latency < math.inf:
        return f"latency {latency:g} ms"
    tolerance = _tolerance(correctness.extra) if correctness.extra else _NO_TOLERANCE
    if performance.extra and (timing := _timing(performance)):
        interval = interval_of(timing.get("interval_ms"), latency)
        return Measurement(
            latency, interval, "setup_ms" in timing, tolerance, timing.get("method") not in _NOT_CAPTURED
        )
    return Measurement(latency, None, False, tolerance)


_NOT_CAPTURED = ("queued", "sync")
"""What benchmarks time with where CUDA graphs fail."""


def _timing(performance: Performance) -> Mapping[str, Any]:
    timing = None if performance.extra is None else performance.extra.get("timing")
    return timing if isinstance(timing, Mapping) else {}


def interval_of(given: object, latency: float) -> tuple[float, float] | None:
    """An interval around a latency, if that is what a trace holds: any other could make a slow solution look fast."""
    if not isinstance(given, (list, tuple)) or len(given) != 2:
        return None
    low, high = given
    if type(low) not in (int, float) or type(high) not in (int, float) or not 0 < low <= latency <= high < math.inf:
        return None
    try:
        return float(low), float(high)
    except OverflowError:  # an integer beyond every float
        return None


def _tolerance(extra: Mapping[str, Any]) -> Tolerance:
    atol, rtol, ratio = (_tolerance_number(extra.get(name)) for name in _TOLERANCE_FIELDS)
    return atol, rtol, ratio


def _tolerance_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e300:
        return None
    return float(value)


def loosest(tolerances: Iterable[Tolerance]) -> Tolerance:
    """What passes on some workload: the largest errors and the smallest ratio."""
    atol, rtol, ratio = zip(*tolerances, strict=True)
    return _among(max, atol), _among(max, rtol), _among(min, ratio)


def _among(pick: Callable[[list[float]], float], values: tuple[float | None, ...]) -> float | None:
    given = [value for value in values if value is not None]
    return pick(given) if given else None
