"""Measurements: the evaluations that count, and the latency and tolerance that each one states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import attrs
from fib_schema import Definition, Evaluation, EvaluationStatus, Trace, Workload
from fib_schema.padded_indices import PADDED_INDICES
from fib_schema.strides import LAYOUT, workload_strides
from fib_schema.trace import UNRANKED_FLAGS
from fib_schema.trace_facts import has_workload_layout

from ..config import ApplyConfig
from ..key import ApplyKey, ApplyKeyBuilder
from .timings import Timing, baseline_timing, group, interval_of, reference_timing

Tolerance: TypeAlias = tuple[float | None, float | None, float | None]
WorkloadRun: TypeAlias = tuple[str, dict[str, Trace]]
"""A workload's uuid, and the evaluation that counts of each solution."""

_NO_TOLERANCE: Tolerance = (None, None, None)
_TOLERANCE_FIELDS = ("atol", "rtol", "required_matched_ratio")
_PASSED = EvaluationStatus.PASSED
_REWARD_HACK = EvaluationStatus.REWARD_HACK
_PLAIN = (str, int, float, bool, type(None))


@attrs.frozen
class SelectionCriteria:
    """The settings that decide which solution is selected; tables with equal criteria are interchangeable."""

    max_atol: float | None
    max_rtol: float | None
    baseline: str | None
    margin: float
    requires_speedup: bool
    is_batch_invariant: bool
    is_enabled: bool = True
    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    @classmethod
    def from_config(cls, config: ApplyConfig) -> SelectionCriteria:
        """The criteria among the settings."""
        return cls(
            max_atol=config.max_atol,
            max_rtol=config.max_rtol,
            baseline=config.baseline,
            margin=config.margin,
            requires_speedup=config.require_speedup,
            is_batch_invariant=config.batch_invariant,
            is_enabled=config.enabled,
            exclude=config.exclude,
            only=config.only,
        )

    def refusal(self, solution: str) -> str | None:
        """Reason why the settings refuse a solution, whatever was measured; None if they do not.

        The baseline is never refused: its time is that of the fallback.
        """
        if solution == self.baseline:
            return None
        if not self.is_enabled:
            return "the settings select no solutions (enabled)"
        if solution in self.exclude:
            return "the settings exclude it"
        return "the settings name others (only)" if self.only and solution not in self.only else None

    @property
    def without_error_bounds(self) -> SelectionCriteria:
        """The criteria for the baseline, which serves calls whatever its errors are."""
        return attrs.evolve(self, max_atol=None, max_rtol=None)


class Measurement(NamedTuple):
    """A solution's latency on one workload. A tuple, because a table needs 200,000 of them."""

    latency_ms: float
    interval_ms: tuple[float, float] | None
    has_setup: bool
    tolerance: Tolerance
    may_capture: bool = False
    may_pad: bool = False
    fallback: Timing | None = None
    """The fallback on the workload, as far as the solution's own trace states it."""


@attrs.define
class LatestEvaluations:
    """The evaluations that count."""

    runs: dict[str, dict[str, dict[str, Trace]]] = attrs.field(factory=dict)
    """By hardware, workload uuid and solution."""
    reward_hacks: set[str] = attrs.field(factory=set)
    """Solutions with a REWARD_HACK evaluation."""
    excluded: list[tuple[Trace, str]] = attrs.field(factory=list)
    """Traces that do not count, each with the reason."""


def latest_evaluations(definition: Definition, traces: Iterable[Trace], hashes: Mapping[str, str]) -> LatestEvaluations:
    """Find the latest evaluation of each solution on each workload and hardware.

    Args:
        definition: Of all traces.
        traces: In the order of appending, which decides between equal timestamps.
        hashes: The content hash of each known solution.
    """
    found = LatestEvaluations()
    runs = found.runs
    for trace in traces:
        evaluation, name = trace.evaluation, trace.solution
        if evaluation is None or name is None:
            continue
        is_suspect = evaluation.extra is not None or trace.workload.extra is not None or name not in hashes
        if is_suspect and (reason := _exclusion(definition, evaluation, trace.workload, hashes.get(name))):
            found.excluded.append((trace, reason))
            continue
        status = evaluation.status
        if status != _PASSED and status == _REWARD_HACK:
            found.reward_hacks.add(name)
        uuid = trace.workload.uuid
        try:
            run = runs[evaluation.environment.hardware][uuid]
        except KeyError:
            run = runs.setdefault(evaluation.environment.hardware, {}).setdefault(uuid, {})
        if name not in run or not _is_later(run[name].evaluation, evaluation):
            run[name] = trace
    return found


def _exclusion(definition: Definition, evaluation: Evaluation, workload: Workload, known: str | None) -> str:
    """Reason why an evaluation does not apply to the present solution; empty if it does."""
    if known is None:
        return "the solution is missing, or its file is damaged"
    measured = None if evaluation.extra is None else evaluation.extra.get("solution_hash")
    if measured not in (None, known):
        return "only another version was measured"
    if not _has_layout_of(definition, evaluation, workload):
        return "it was measured with another layout than that of the workload"
    return "only a quick run measured it" if _QUICK in evaluation.flags else ""


def _has_layout_of(definition: Definition, evaluation: Evaluation, workload: Workload) -> bool:
    """Whether an evaluation states the workload's layout; in most traces, neither states one."""
    is_stated = LAYOUT in (evaluation.extra or ()) or LAYOUT in (workload.extra or ())
    return not is_stated or has_workload_layout(definition, workload, evaluation)


_QUICK = "quick"  # the flag of fib-bench for passes of shortened runs, which must not replace those of full runs


def _is_later(first: Evaluation | None, second: Evaluation) -> bool:
    """Whether the first has a later timestamp than the second, which was appended after it."""
    if first is None or first.timestamp == second.timestamp:
        return False
    return _instant(first.timestamp) > _instant(second.timestamp)


@lru_cache(maxsize=10_000)
def _instant(timestamp: str) -> float:
    """Seconds since the epoch; an invalid timestamp sorts before all others."""
    try:
        parsed = datetime.fromisoformat(timestamp)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return -math.inf


class WorkloadKeys:
    """The keys of workloads, each built once."""

    def __init__(self, builder: ApplyKeyBuilder) -> None:
        self.problems: list[str] = []
        self._builder = builder
        self._of_workload: dict[int, ApplyKey | None] = {}
        self._of_axes: dict[tuple[tuple[str, int] | str, ...], ApplyKey | None] = {}

    def of(self, workload: Workload) -> ApplyKey | None:
        """The key of a workload, which must outlive this object; None, with an entry in `problems`, if it has none."""
        identity = id(workload)
        if identity not in self._of_workload:
            self._of_workload[identity] = self._by_axes(workload) if self._builder.is_by_shape else self._new(workload)
        return self._of_workload[identity]

    def _by_axes(self, workload: Workload) -> ApplyKey | None:
        if workload.extra is not None and LAYOUT in workload.extra:
            return self._new(workload)
        properties: tuple[tuple[str, int] | str, ...] = *workload.axes.items(), *workload.inputs
        if properties not in self._of_axes:
            self._of_axes[properties] = self._new(workload)
        return self._of_axes[properties]

    def _new(self, workload: Workload) -> ApplyKey | None:
        try:
            key = self._builder.build_from_workload(workload)
            if not (problem := _key_problem(key)):
                key = key.with_layout(workload_strides(self._builder.definition, workload))
        except Exception as error:  # noqa: BLE001 a registered builder may raise anything
            key, problem = ApplyKey(), f"has no key: {type(error).__name__}: {error}"
        if problem:
            self.problems.append(f"{self._builder.definition.name}: workload {workload.uuid!r} {problem}")
            return None
        return key

    def runs_by_key(self, runs: Mapping[str, dict[str, Trace]]) -> dict[ApplyKey, list[WorkloadRun]]:
        """The runs of one hardware by key. Different workloads with the same uuid, which is invalid, stay apart."""
        groups: dict[ApplyKey, list[WorkloadRun]] = {}
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
    """Reason why a key cannot be stored in a table; empty if it can."""
    if not isinstance(key, ApplyKey):
        return f"has no key: its builder returned a {type(key).__name__}"
    for name, value in (*key.axes, *key.feats):
        is_huge = isinstance(value, int) and not -(2**63) <= value < 2**63
        if not isinstance(value, _PLAIN) or value != value or is_huge:
            return f"has an invalid key: {name} is {value!r:.60}, must be a 64-bit number, str, bool or None"
    return ""


def measure(evaluation: Evaluation | None, criteria: SelectionCriteria) -> Measurement | str:
    """The measurement of an evaluation, or why it does not qualify."""
    if evaluation is None:
        return "no evaluation"
    performance, correctness = evaluation.performance, evaluation.correctness
    if evaluation.status != _PASSED or performance is None or correctness is None:
        return str(evaluation.status)
    if evaluation.extra is not None and (found := [flag for flag in evaluation.flags if flag in UNROUTED_FLAGS]):
        return "flagged " + ", ".join(found)
    if criteria.max_atol is not None and not correctness.max_absolute_error <= criteria.max_atol:
        return f"absolute error {correctness.max_absolute_error:g} above {criteria.max_atol:g}"
    if criteria.max_rtol is not None and not correctness.max_relative_error <= criteria.max_rtol:
        return f"relative error {correctness.max_relative_error:g} above {criteria.max_rtol:g}"
    latency = performance.latency_ms
    if not 0.0 < latency < math.inf:
        return f"latency {latency:g} ms"
    tolerance = _tolerance(correctness.extra) if correctness.extra else _NO_TOLERANCE
    name = criteria.baseline
    fallback = reference_timing(performance) if name is None else baseline_timing(performance, name)
    if performance.extra and (timing := group(performance.extra, "timing")):
        interval = interval_of(timing, latency)
        may_capture = timing.get(_GRAPH_SAFE) is True
        may_pad = timing.get(PADDED_INDICES) is True
        return Measurement(latency, interval, "setup_ms" in timing, tolerance, may_capture, may_pad, fallback)
    return Measurement(latency, None, False, tolerance, fallback=fallback)


UNROUTED_FLAGS = UNRANKED_FLAGS | {"fixed_inputs", "interpreted"}
"""Flags with which a solution is not eligible: those that exclude it from rankings, one set of input values only, and
a latency that has no meaning."""
_GRAPH_SAFE = "graph_safe"
"""The field of a timing that says that replays of a captured call were right with changed integers. Captured calls are
replayed after their integers have changed, so a solution without this evidence is not called during a capture."""


def _tolerance(extra: Mapping[str, Any]) -> Tolerance:
    atol, rtol, ratio = (_tolerance_number(extra.get(name)) for name in _TOLERANCE_FIELDS)
    return atol, rtol, ratio


def _tolerance_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e300:
        return None
    return float(value)


def loosest_tolerance(tolerances: Iterable[Tolerance]) -> Tolerance:
    """The largest errors and the smallest matched ratio of several tolerances."""
    atol, rtol, ratio = zip(*tolerances, strict=True)
    return _pick(max, atol), _pick(max, rtol), _pick(min, ratio)


def _pick(pick: Callable[[list[float]], float], values: tuple[float | None, ...]) -> float | None:
    given = [value for value in values if value is not None]
    return pick(given) if given else None
