"""Selection rules: which solution serves which key, as a pure function of traces.

The page "Which solution serves a call" of the manual (``docs/manual/selection.md``) states the rules, in this order:
evaluations that count (`_counting`), eligible solutions (`_Ranker._eligible`), the latency that the mode pays, the
score at a key, the winner (`_Ranker._in_order`), the fallback's time (`_FallbackTimes`), the best over all keys.

A baseline serves calls anyway: the bounds on errors do not apply to it, and it is no candidate. Workloads with a
layout have keys of their own. Of calls with padded indices, keys that differ only in the size of the indices are one
key beside the others, of solutions that ran the workloads of all these sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import attrs
from fib_schema import Definition, Evaluation, EvaluationStatus, ScalarInput, Solution, Trace, Workload
from fib_schema.display import counted
from fib_schema.padded_indices import PADDED_INDICES, padded_indices_of
from fib_schema.strides import LAYOUT, workload_strides
from fib_schema.trace_facts import (
    NOT_ROUTED,
    Timing,
    baseline_of,
    disqualifying_flags,
    extra_group,
    has_workload_layout,
    is_quick,
    latest,
    reference_timing_of,
    timing_of,
)

from ..config import ApplyConfig
from ..key import ApplyKey, ApplyKeyBuilder
from .rankings import Candidate, HardwareRankings, Ranking, log_margin, number_text

_BY_SIMPLICITY = ("python", "helion", "triton", "cutile", "tilelang", "cute_dsl", "cpp", "cuda", "cutlass")
_LANGUAGE_RANK = {language: rank for rank, language in enumerate(_BY_SIMPLICITY)}
"""From the simplest on; other languages come last."""
_GRAPH_SAFE = "graph_safe"
"""The field of a timing that says that replays of a captured call were right with changed integers. Captured calls are
replayed after their integers have changed, so a solution without this evidence is not called during a capture."""
_PASSED = EvaluationStatus.PASSED
_PLAIN = (str, int, float, bool, type(None))


@attrs.frozen
class SolutionFacts:
    """The properties of a solution that selection depends on."""

    name: str
    language: str
    source_bytes: int
    hash: str

    @classmethod
    def from_solution(cls, solution: Solution) -> SolutionFacts:
        """The facts of a solution."""
        size = sum(len(source.content.encode("utf-8", "surrogatepass")) for source in solution.sources)
        return cls(solution.name, str(solution.spec.language), size, solution.hash())


@attrs.frozen
class Selection:
    """The rankings of one definition by hardware, and problems of its workloads."""

    rankings: Mapping[str, HardwareRankings]
    problems: tuple[str, ...] = ()


def select(
    definition: Definition,
    traces: Iterable[Trace],
    facts: Iterable[SolutionFacts],
    config: ApplyConfig,
    key_builder: ApplyKeyBuilder,
) -> Selection:
    """Rank the solutions for every hardware and key, by the rules above."""
    by_name = {fact.name: fact for fact in facts}
    counting, not_counting = _counting(definition, traces, by_name)
    hacks = {t.solution for t in counting if t.evaluation and t.evaluation.status == EvaluationStatus.REWARD_HACK}
    keys = WorkloadKeys(key_builder)
    excluded = _excluded_by_key(not_counting, keys)
    padded = padded_indices_of(definition)
    rankings = {}
    for hardware, runs in latest(counting).items():
        ranker = _Ranker(by_name, config, hacks)
        groups: dict[ApplyKey, list[_KeyRun]] = {}
        for key, runs_of_key in keys.runs_by_key(runs).items():
            numbered = [(key, run) for run in runs_of_key]
            groups.setdefault(key, []).extend(numbered)
            if padded is not None:
                of_padded = key.without_axes({padded.axis}).with_padding(padded.axis)
                groups.setdefault(of_padded, []).extend(numbered)
        for key, group in groups.items():
            left_out = {}
            for one in dict.fromkeys(one for one, _ in group):
                left_out.update(excluded.get((hardware, one), {}))
            ranker.add(key, group, left_out)
        rankings[hardware] = HardwareRankings(hardware, ranker.rankings, ranker.best())
    return Selection(rankings, tuple(keys.problems))


# -- evaluations that count --------------------------------------------------------------------------


def _counting(
    definition: Definition, traces: Iterable[Trace], facts: Mapping[str, SolutionFacts]
) -> tuple[list[Trace], list[tuple[Trace, str]]]:
    """The traces whose evaluation counts, and the others, each with the reason."""
    counting, others = [], []
    for trace in traces:
        evaluation, workload = trace.evaluation, trace.workload
        if evaluation is None or trace.solution is None or trace.definition != definition.name:
            continue
        known = facts.get(trace.solution)
        is_suspect = known is None or evaluation.extra is not None or workload.extra is not None
        if is_suspect and (reason := _exclusion(definition, evaluation, workload, known)):
            others.append((trace, reason))
        else:
            counting.append(trace)
    return counting, others


def _exclusion(
    definition: Definition, evaluation: Evaluation, workload: Workload, known: SolutionFacts | None
) -> str | None:
    """Reason why an evaluation does not apply to the present solution; None if it does."""
    if known is None:
        return "the solution is missing, or its file is damaged"
    measured = None if evaluation.extra is None else evaluation.extra.get("solution_hash")
    if measured not in (None, known.hash):
        return "only another version was measured"
    if not has_workload_layout(definition, workload, evaluation):
        return "it was measured with another layout than that of the workload"
    return "only a quick run measured it" if is_quick(evaluation) else None


def _excluded_by_key(
    traces: Iterable[tuple[Trace, str]], keys: WorkloadKeys
) -> dict[tuple[str, ApplyKey], dict[str, str]]:
    groups: dict[tuple[str, ApplyKey], dict[str, str]] = {}
    for trace, reason in traces:
        key = keys.of(trace.workload)
        if key is not None and trace.evaluation is not None and trace.solution is not None:
            groups.setdefault((trace.evaluation.environment.hardware, key), {})[trace.solution] = reason
    return groups


_WorkloadRun: TypeAlias = tuple[str, dict[str, Trace]]
"""A workload's uuid, and the evaluation that counts of each solution."""
_KeyRun: TypeAlias = tuple[ApplyKey, _WorkloadRun]
"""A run with the key of its workload, before the size of padded indices is left out."""


class WorkloadKeys:
    """The keys of workloads; those of equal shapes are built once."""

    def __init__(self, builder: ApplyKeyBuilder) -> None:
        self.problems: list[str] = []
        self._builder = builder
        self._of_shapes: dict[tuple[tuple[str, int] | str, ...], ApplyKey | None] = {}

    def of(self, workload: Workload) -> ApplyKey | None:
        """The key of a workload; None, with an entry in `problems`, if it has none."""
        if not self._builder.is_by_shape or (workload.extra is not None and LAYOUT in workload.extra):
            return self._new(workload)
        properties: tuple[tuple[str, int] | str, ...] = *workload.axes.items(), *workload.inputs
        if properties not in self._of_shapes:
            self._of_shapes[properties] = self._new(workload)
        return self._of_shapes[properties]

    def _new(self, workload: Workload) -> ApplyKey | None:
        try:
            key = self._builder.build_from_workload(workload)
            if not (problem := _key_problem(key)):
                key = key.with_layout(workload_strides(self._builder.definition, workload))
        except Exception as error:  # noqa: BLE001 a registered builder may raise anything
            key, problem = ApplyKey(), f"has no key: {type(error).__name__}: {error}"
        if problem:
            text = f"{self._builder.definition.name}: workload {workload.uuid!r} {problem}"
            self.problems += [text] * (text not in self.problems)
            return None
        return key

    def runs_by_key(self, runs: Mapping[str, dict[str, Trace]]) -> dict[ApplyKey, list[_WorkloadRun]]:
        """The runs of one hardware by key, which tells workloads with the same uuid apart: such a set is invalid."""
        groups: dict[ApplyKey, dict[str, dict[str, Trace]]] = {}
        for uuid, run in runs.items():
            for name, trace in run.items():
                if (key := self.of(trace.workload)) is not None:
                    groups.setdefault(key, {}).setdefault(uuid, {})[name] = trace
        return {key: list(found.items()) for key, found in groups.items()}


def _key_problem(key: object) -> str:
    """Reason why a key cannot be stored in a table; empty if it can."""
    if not isinstance(key, ApplyKey):
        return f"has no key: its builder returned a {type(key).__name__}"
    for name, value in (*key.axes, *key.feats):
        is_huge = isinstance(value, int) and not -(2**63) <= value < 2**63
        if not isinstance(value, _PLAIN) or value != value or is_huge:
            return f"has an invalid key: {name} is {value!r:.60}, must be a 64-bit number, str, bool or None"
    return ""


# -- measurements and their means --------------------------------------------------------------------

_Interval: TypeAlias = tuple[float, float]


class _Latency(NamedTuple):
    latency_ms: float
    interval_ms: _Interval | None


class _Measurement(NamedTuple):
    """A solution's latency on one workload. A tuple, because a table needs 200,000 of them."""

    latency_ms: float
    interval_ms: _Interval | None
    has_setup: bool
    tolerance: tuple[float | None, float | None, float | None]
    may_capture: bool
    may_pad: bool
    fallback: _Latency | None
    """The fallback on the workload, as far as the solution's own trace states it."""
    call: _Latency | None
    call_fallback: _Latency | None
    """Both call latencies, where the judge's clock measured them."""
    numbers: tuple[tuple[str, str], ...]
    """The number inputs that were the same in all calls, each with its value."""

    @property
    def by_call(self) -> _Measurement:
        """The measurement of eager calls; there must be one."""
        assert self.call is not None, "callers have looked"
        return self._replace(
            latency_ms=self.call.latency_ms, interval_ms=self.call.interval_ms, fallback=self.call_fallback
        )


_Measured: TypeAlias = list[tuple[int, _Measurement]]
"""Measurements with the numbers of their workloads."""
_Numbered: TypeAlias = "Sequence[tuple[int, _Measurement | _Latency]]"


def _measure(
    workload: Workload, evaluation: Evaluation, config: ApplyConfig, *, is_baseline: bool
) -> _Measurement | str:
    """The measurement of an evaluation, or why it does not qualify."""
    performance, correctness = evaluation.performance, evaluation.correctness
    if evaluation.status != _PASSED or performance is None or correctness is None:
        return str(evaluation.status)
    if found := disqualifying_flags(evaluation, among=NOT_ROUTED):
        return "flagged " + ", ".join(found)
    for kind, value, most in (
        ("absolute", correctness.max_absolute_error, config.max_atol),
        ("relative", correctness.max_relative_error, config.max_rtol),
    ):
        if most is not None and not is_baseline and not value <= most:
            return f"{kind} error {value:g} above {most:g}"
    timing = timing_of(performance)
    if timing is None:
        return f"latency {performance.latency_ms:g} ms"
    if config.baseline is None:
        fallback = reference_timing_of(performance)
    else:
        beside = baseline_of(performance)
        fallback = None if beside is None or beside.solution != config.baseline else beside.timing
    stated = extra_group(performance.extra, "timing")
    return _Measurement(
        timing.latency_ms,
        timing.bounds_ms,
        "setup_ms" in stated,
        _tolerance(correctness.extra) if correctness.extra else (None, None, None),
        stated.get(_GRAPH_SAFE) is True,
        stated.get(PADDED_INDICES) is True,
        _latency(fallback),
        _latency(timing.of_call),
        None if fallback is None else _latency(fallback.of_call),
        _numbers(workload, evaluation),
    )


def _numbers(workload: Workload, evaluation: Evaluation) -> tuple[tuple[str, str], ...]:
    """The numbers that a workload states, but for those that the benchmark changed in a call of its own."""
    stated = {name: source.value for name, source in workload.inputs.items() if isinstance(source, ScalarInput)}
    if not stated:
        return ()
    changed = extra_group(evaluation.extra, "other_scalars")
    return tuple([(name, number_text(value)) for name, value in stated.items() if name not in changed])


def _latency(timing: Timing | None) -> _Latency | None:
    return None if timing is None else _Latency(timing.latency_ms, timing.bounds_ms)


def _tolerance(extra: Mapping[str, object]) -> tuple[float | None, float | None, float | None]:
    def number(name: str) -> float | None:
        value = extra.get(name)
        is_valid = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e300
        return float(value) if is_valid else None  # type: ignore[arg-type] # checked

    return number("atol"), number("rtol"), number("required_matched_ratio")


def _loosest(values: Iterable[float | None], pick: Callable[[list[float]], float]) -> float | None:
    given = [value for value in values if value is not None]
    return pick(given) if given else None


def _mean_logarithms(numbered: _Numbered) -> tuple[float, _Interval | None]:
    """The mean logarithm of latencies, and of both ends of the intervals if all have one."""
    count = len(numbered)
    if count == 1:  # by far the most common
        _, found = numbered[0]
        ends = found.interval_ms
        return math.log(found.latency_ms), None if ends is None else (math.log(ends[0]), math.log(ends[1]))
    latency = math.fsum(math.log(found.latency_ms) for _, found in numbered) / count
    intervals = [found.interval_ms for _, found in numbered if found.interval_ms is not None]
    if len(intervals) < count:
        return latency, None
    low = math.fsum(math.log(low) for low, _ in intervals) / count
    return latency, (low, math.fsum(math.log(high) for _, high in intervals) / count)


# -- scores ------------------------------------------------------------------------------------------


class _Score(NamedTuple):
    """The score of a solution at a key; sorts by speed, then by coverage.

    Logarithms, because ratios of extreme latencies overflow. A tuple, because a table needs 200,000 of them.
    """

    ratio: float
    """Mean logarithm of the ratios of its latency to the fastest on each workload."""
    coverage: int
    """Negated number of workloads that it ran."""
    name: str
    low: float | None
    """The same for the lower end of the interval."""
    high: float | None
    measured: _Measured

    @property
    def has_setup(self) -> bool:
        """Whether it needs a plan."""
        return any(measurement.has_setup for _, measurement in self.measured)


def _score_solutions(runs: Sequence[Mapping[str, _Measurement]]) -> list[_Score]:
    """Score all solutions, fastest first; `runs` has the measurements of each workload, by solution."""
    fastest = [math.log(min([m.latency_ms for m in run.values()])) if run else 0.0 for run in runs]
    of_solution: dict[str, _Measured] = {}
    for number, run in enumerate(runs):
        for name, found in run.items():
            of_solution.setdefault(name, []).append((number, found))
    scores = []
    for name, measured in of_solution.items():
        least = math.fsum([fastest[number] for number, _ in measured]) / len(measured)
        latency, interval = _mean_logarithms(measured)
        low, high = (None, None) if interval is None else (interval[0] - least, interval[1] - least)
        scores.append(_Score(latency - least, -len(measured), name, low, high, measured))
    return sorted(scores)


def _are_separate(fast: _Score, slow: _Score, least: float) -> bool:
    """Whether a solution is faster than a slower or equal one beyond the uncertainty of the measurements."""
    if fast.high is not None and slow.low is not None:
        return fast.high < slow.low
    return slow.ratio - fast.ratio > least


@attrs.frozen
class _FallbackTimes:
    """The times of the fallback at one key, and what is faster."""

    label: str
    """Name of the timed function, for texts."""
    own: Mapping[int, _Measurement]
    """The measurements of the named baseline, by workload."""
    least: float
    """The `log_margin` that counts where a latency has no interval."""
    is_each: bool
    """Whether a solution must be faster on each workload, and not only on their mean."""

    def of(self, score: _Score) -> list[tuple[int, _Latency]]:
        """The fallback on the workloads of a solution: interleaved with it where possible, else of the baseline."""
        found = []
        for number, measurement in score.measured:
            latency = measurement.fallback
            if latency is None and (own := self.own.get(number)) is not None:
                latency = _Latency(own.latency_ms, own.interval_ms)
            if latency is not None:
                found.append((number, latency))
        return found

    def problem(self, score: _Score) -> str | None:
        """Reason why a solution is not faster beyond uncertainty, on the workloads that both ran; None if it is."""
        times = self.of(score)
        if not times:
            return f"no time of {self.label} to compare with"
        found = (self._problem_on(score, some) for some in ([[one] for one in times] if self.is_each else [times]))
        return next((problem for problem in found if problem is not None), None)

    def _problem_on(self, score: _Score, times: _Numbered) -> str | None:
        numbers = {number for number, _ in times}
        fast, fast_interval = _mean_logarithms([pair for pair in score.measured if pair[0] in numbers])
        slow, slow_interval = _mean_logarithms(times)
        if fast_interval is not None and slow_interval is not None:
            is_faster = fast < slow and fast_interval[1] < slow_interval[0]
        else:
            is_faster = slow - fast > self.least
        if is_faster:
            return None
        uncertain = ", a difference within the uncertainty" if fast < slow else ""
        compared = f"{math.exp(fast) * 1e3:.2f} us against {math.exp(slow) * 1e3:.2f} us"
        return f"not faster than {self.label}: {compared}{uncertain}"

    def candidate(self, score: _Score) -> Candidate:
        """A candidate with the fallback's time on its workloads."""
        fallback, interval = _mean_logarithms(times) if (times := self.of(score)) else (None, None)
        return _merged(score.name, score.measured, None if fallback is None else math.exp(fallback), _exp(interval))


# -- ranking -----------------------------------------------------------------------------------------


class _Ranker:
    """Ranks the solutions of one definition on one hardware."""

    def __init__(self, facts: Mapping[str, SolutionFacts], config: ApplyConfig, hacks: set[str | None]) -> None:
        self.rankings: dict[ApplyKey, Ranking] = {}
        self._facts = facts
        self._config = config
        self._hacks = hacks
        self._least = log_margin(config.margin)
        self._disqualified: set[str] = set()
        self._scores_by_key: list[list[_Score]] = []

    def add(self, key: ApplyKey, group: Sequence[_KeyRun], excluded: Mapping[str, str]) -> None:
        """Rank the solutions at one key; one of padded indices is left out if no solution was right with such."""
        group = sorted(group, key=lambda item: item[1][0]) if len(group) > 1 else group
        runs = [run for _, run in group]
        measured, left_out = self._eligible(runs)
        is_padded = key.padded_axis is not None
        if is_padded and not any(m.may_pad for of_run in measured for m in of_run.values()):
            return
        sizes = [one for one, _ in group] if is_padded else None
        captured = None
        if all(found.call is not None for of_run in measured for found in of_run.values()):
            captured = self._captured(measured, sizes)
            measured = [{name: found.by_call for name, found in of_run.items()} for of_run in measured]
        ranked, times = self._scores(measured, sizes, left_out)
        ranked, no_winner = self._faster_than_fallback(ranked, times, left_out)
        if key.is_exact:  # calls of other keys have neither these strides nor padded indices
            self._disqualified.update(left_out)
            self._scores_by_key.append(ranked)
        for name, why in excluded.items():
            if not any(name in run for _, run in runs):
                left_out[name] = why
        order, reason = self._in_order(ranked) if ranked else (ranked, no_winner)
        candidates = tuple([times.candidate(score) for score in order])
        others = tuple(sorted(left_out.items()))
        self.rankings[key] = Ranking(candidates, reason, others, times.label, is_padded, captured)

    def _scores(
        self, measured: Sequence[Mapping[str, _Measurement]], sizes: Sequence[ApplyKey] | None, left_out: dict[str, str]
    ) -> tuple[list[_Score], _FallbackTimes]:
        """The scores, fastest first, and the times of the fallback; with `sizes` one solution serves all of these."""
        times = self._fallback_times(measured, is_each=sizes is not None)
        if sizes is not None:
            measured = _measured_everywhere(measured, sizes, left_out, self._config.baseline)
        return _score_solutions(measured), times

    def _captured(
        self, measured: Sequence[Mapping[str, _Measurement]], sizes: Sequence[ApplyKey] | None
    ) -> tuple[Candidate, ...]:
        """The candidates of captured calls, by device latencies; those with a setup are only to be compared with."""
        unsafe = {n for of_run in measured for n, found in of_run.items() if not found.may_capture | found.has_setup}
        safe = [{name: found for name, found in of_run.items() if name not in unsafe} for of_run in measured]
        ranked, times = self._scores(safe, sizes, {})
        faster, _ = self._faster_than_fallback(ranked, times, {})
        return tuple([times.candidate(score) for score in (self._in_order(faster)[0] if faster else ())])

    def _eligible(self, runs: Sequence[_WorkloadRun]) -> tuple[list[dict[str, _Measurement]], dict[str, str]]:
        """The measurements of eligible solutions on each workload, and why others are left out."""
        left_out: dict[str, str] = {}
        found: list[dict[str, _Measurement]] = []
        for uuid, run in runs:
            of_run: dict[str, _Measurement] = {}
            for name, trace in run.items():
                assert trace.evaluation is not None  # others do not count
                is_baseline = name == self._config.baseline
                value = _measure(trace.workload, trace.evaluation, self._config, is_baseline=is_baseline)
                if (refusal := self._refusal(name)) is not None:
                    left_out[name] = refusal
                elif type(value) is _Measurement:
                    of_run[name] = value
                else:
                    left_out.setdefault(name, f"{value} on workload {uuid}")
            found.append(of_run)
        if len(found) > 1 and left_out:
            found = [{name: m for name, m in of_run.items() if name not in left_out} for of_run in found]
        return found, left_out

    def _refusal(self, solution: str) -> str | None:
        """Reason why a solution is refused, whatever was measured; None if it is not.

        Settings do not refuse the baseline: its time is that of the fallback.
        """
        config = self._config
        if solution in self._hacks:
            return "an evaluation of it is a REWARD_HACK"
        if solution == config.baseline:
            return None
        if not config.enabled:
            return "the settings select no solutions (enabled)"
        if solution in config.exclude:
            return "the settings exclude it"
        return "the settings name others (only)" if config.only and solution not in config.only else None

    def _fallback_times(self, measured: Sequence[Mapping[str, _Measurement]], *, is_each: bool) -> _FallbackTimes:
        name = self._config.baseline
        own = {} if name is None else {number: run[name] for number, run in enumerate(measured) if name in run}
        return _FallbackTimes("the reference" if name is None else f"the baseline {name!r}", own, self._least, is_each)

    def _faster_than_fallback(
        self, ranked: Sequence[_Score], times: _FallbackTimes, left_out: dict[str, str]
    ) -> tuple[list[_Score], str]:
        """The solutions to select among, and the reason if there is none."""
        others = [score for score in ranked if score.name != self._config.baseline]
        if not self._config.require_speedup or not others:
            return others, "no solution is eligible here"
        problems = {score.name: problem for score in others if (problem := times.problem(score)) is not None}
        left_out.update(problems)
        if not any(times.of(score) for score in others):
            missing = "has no passing evaluation here" if self._config.baseline else "has no recorded time here"
            return [], f"{times.label} {missing}"
        faster = [score for score in others if score.name not in problems]
        return faster, f"none of {len(others)} is faster than {times.label}"

    def _in_order(self, ranked: list[_Score]) -> tuple[list[_Score], str]:
        """The scores by preference, and why the first is the first; `ranked` is sorted by speed."""
        first, rivals = self._preferred(ranked)
        reason = f"the fastest of {len(ranked)}" if len(ranked) > 1 else "the only candidate"
        if rivals:
            reason = f"the simplest of {rivals + 1} that are as fast as {ranked[0].name!r}"
        order = [first]
        if first.has_setup and (plain := [s for s in ranked if not s.has_setup]):
            order.append(self._preferred(plain)[0])
        elif first is ranked[0]:
            return ranked, reason
        taken = {s.name for s in order}
        return order + [s for s in ranked if s.name not in taken], reason

    def _preferred(self, ranked: list[_Score]) -> tuple[_Score, int]:
        """The winner, and the number of others that are as fast as the fastest."""
        fastest, least = ranked[0], self._least
        rivals = [s for s in ranked[1:] if not _are_separate(fastest, s, least)]
        return min([fastest, *rivals], key=self._by_simplicity) if rivals else fastest, len(rivals)

    def _by_simplicity(self, score: _Score) -> tuple[int, int, int, str]:
        facts = self._facts[score.name]
        rank = _LANGUAGE_RANK.get(facts.language, len(_LANGUAGE_RANK))
        return score.coverage, rank, facts.source_bytes, facts.name

    def best(self) -> Ranking | None:
        """The ranking over all keys that were added."""
        ratios: dict[str, list[float]] = {}
        measured: dict[str, _Measured] = {}
        for ranked in self._scores_by_key:
            for score in ranked:
                if score.name not in self._disqualified:
                    ratios.setdefault(score.name, []).append(score.ratio - ranked[0].ratio)
                    measured.setdefault(score.name, []).extend(score.measured)
        means = {name: (-len(values), math.fsum(values) / len(values), name) for name, values in ratios.items()}
        order = sorted(means, key=means.__getitem__)
        if not order:
            return None
        keys, ratio, _ = means[order[0]]
        share = f"{-keys} of {counted(len(self.rankings), 'key')}"
        slower = f"{math.exp(ratio):.3g}" if ratio < 700 else "over 1e304"
        reason = f"serves {share}, at {slower} times the latency of the fastest"
        candidates = tuple([_merged(name, measured[name]) for name in order])
        left_out = tuple((name, "not eligible at a key") for name in sorted(self._disqualified))
        return Ranking(candidates, reason, left_out)


def _measured_everywhere(
    measured: Sequence[Mapping[str, _Measurement]],
    sizes: Sequence[ApplyKey],
    left_out: dict[str, str],
    baseline: str | None,
) -> list[dict[str, _Measurement]]:
    """The measurements of solutions that ran all workloads; the reason why others are left out is added."""
    names = dict.fromkeys(name for run in measured for name in run)
    for name in names:
        missing = next((size for size, run in zip(sizes, measured, strict=True) if name not in run), None)
        if missing is not None and name != baseline:
            text = f"not measured on all workloads of {missing}, which one solution has to serve too"
            left_out.setdefault(name, text)
    kept = [name for name in names if all(name in run for run in measured)]
    return [{name: run[name] for name in kept} for run in measured]


def _merged(
    name: str, numbered: _Measured, fallback_ms: float | None = None, fallback_interval_ms: _Interval | None = None
) -> Candidate:
    """The candidate of a solution's measurements."""
    if len(numbered) == 1:
        latency_ms, interval_ms, has_setup, tolerance, may_capture, may_pad, *_, numbers = numbered[0][1]
        evidence = (1, may_capture, may_pad)
        beside = (fallback_ms, fallback_interval_ms, tuple([(number, (value,)) for number, value in numbers]))
        return Candidate(name, latency_ms, interval_ms, has_setup, *tolerance, *evidence, *beside)
    measured = [measurement for _, measurement in numbered]
    latency, interval = _mean_logarithms(numbered)
    atol, rtol, ratio = zip(*(m.tolerance for m in measured), strict=True)
    return Candidate(
        name,
        math.exp(latency),
        _exp(interval),
        any(m.has_setup for m in measured),
        _loosest(atol, max),
        _loosest(rtol, max),
        _loosest(ratio, min),
        len(measured),
        all(m.may_capture for m in measured),
        all(m.may_pad for m in measured),
        fallback_ms,
        fallback_interval_ms,
        _merged_numbers([dict(m.numbers) for m in measured]),
    )


def _merged_numbers(stated: Sequence[Mapping[str, str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """All values of the numbers that every workload states."""
    names = [name for name in stated[0] if all(name in numbers for numbers in stated)]
    return tuple([(name, tuple(sorted({numbers[name] for numbers in stated}))) for name in names])


def _exp(interval: _Interval | None) -> _Interval | None:
    return None if interval is None else (math.exp(interval[0]), math.exp(interval[1]))
