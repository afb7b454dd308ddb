"""Selection rules: which solution serves which key, as a pure function of traces.

The rules, in the order in which they apply:

1. *Evaluations that count.* Those of present solutions in their present version: an evaluation with another
   ``extra["solution_hash"]`` does not count. Of several on the same hardware and workload, the latest
   counts: by timestamp, then by the order of appending.
2. *Eligible solutions.* An eligible solution passed on every workload of the key that it ran, has no flag of
   `fib_schema.UNRANKED_FLAGS`, has errors within ``max_atol`` and ``max_rtol``, and has a positive, finite
   latency. One evaluation that fails this excludes the solution at the key; a REWARD_HACK excludes it everywhere.
3. *Score.* On each workload, a solution has a ratio to the fastest one. Its score at a key is the geometric
   mean of its ratios, so running only the easy workloads is no advantage. Where all solutions ran the same
   workloads, this orders them by the geometric mean of their latencies.
4. *Winner.* The fastest solution, if it is separated from the others: by disjoint intervals where both have one,
   else by latencies that differ by more than ``margin``. Among those not separated from the fastest, the one that
   ran most workloads of the key, then the simplest (by language, bytes of source, name). The others follow by speed.
5. *Setup.* A solution with a `setup` serves only planned calls. If it wins, the best one without, by rule 4,
   comes second.
6. *Baseline.* With ``baseline`` set, only solutions that are faster (as in rule 4, on the workloads that both ran)
   remain. The bounds on errors do not apply to the baseline, which serves calls anyway. Without a passing
   evaluation of the baseline nothing is selected.
7. *Best over all keys* of a hardware. Of the solutions that rules 2 and 6 excluded at no key, the one with most
   keys, then with the best geometric mean of its ratios to the fastest candidate of each key, then by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

import attrs
from fib_schema import Definition, Solution, Trace

from ..config import ApplyConfig
from ..key import ApplyKey, ApplyKeyBuilder
from .measurements import (
    LatestEvaluations,
    Measurement,
    SelectionCriteria,
    WorkloadKeys,
    WorkloadRun,
    latest_evaluations,
    loosest_tolerance,
    measure,
)
from .scores import Score, are_separate, is_faster, log_margin, mean_logarithms, score_solutions

_BY_SIMPLICITY = ("python", "helion", "triton", "cutile", "tilelang", "cute_dsl", "cpp", "cuda", "cutlass")
_LANGUAGE_RANK = {language: rank for rank, language in enumerate(_BY_SIMPLICITY)}
"""From the simplest on; other languages come last."""


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
class Candidate:
    """A solution that may serve a key."""

    solution: str
    latency_ms: float
    """Geometric mean over its workloads."""
    interval_ms: tuple[float, float] | None = None
    """Likewise, if every workload has one."""
    has_setup: bool = False
    """Whether it needs a plan: plain calls cannot use it."""
    atol: float | None = None
    """The tolerance that it passed with; the loosest of several workloads."""
    rtol: float | None = None
    required_matched_ratio: float | None = None
    workloads: int = 1
    """Number of the key's workloads that it ran."""
    may_capture: bool = True
    """Whether it may be called while a CUDA graph is captured: false if it was timed without capture."""


@attrs.frozen
class Ranking:
    """The candidates of one key, or of all keys, in order of preference."""

    candidates: tuple[Candidate, ...]
    reason: str
    """Why the first candidate is the first, or why there is none; one line."""
    left_out: tuple[tuple[str, str], ...] = ()
    """The other measured solutions, each with the reason."""

    @property
    def plain(self) -> Candidate | None:
        """The first candidate that needs no plan."""
        return next((candidate for candidate in self.candidates if not candidate.has_setup), None)


@attrs.frozen
class HardwareRankings:
    """The rankings of one definition on one hardware."""

    hardware: str
    by_key: Mapping[ApplyKey, Ranking]
    best: Ranking | None = None
    """Over all keys; None if no solution qualified at all keys that it ran."""


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
    """Rank the solutions for every hardware and key, by the rules above.

    Args:
        definition: The definition; traces of others are ignored.
        traces: In the order of appending.
        facts: Of the present solutions.
        config: Settings; those of `SelectionCriteria` matter.
        key_builder: Makes keys of workloads. Workloads for which it fails are left out and reported.
    """
    by_name = {fact.name: fact for fact in facts}
    of_definition = [trace for trace in traces if trace.definition == definition.name]
    latest = latest_evaluations(of_definition, {name: fact.hash for name, fact in by_name.items()})
    keys = WorkloadKeys(key_builder)
    excluded = _excluded_by_key(latest, keys)
    criteria = SelectionCriteria.from_config(config)
    rankings = {}
    for hardware, runs in latest.runs.items():
        ranker = _Ranker(by_name, criteria, latest.reward_hacks)
        for key, runs_of_key in keys.runs_by_key(runs).items():
            ranker.add(key, runs_of_key, excluded.get((hardware, key), {}))
        rankings[hardware] = HardwareRankings(hardware, ranker.rankings, ranker.best())
    return Selection(rankings, tuple(keys.problems))


def _excluded_by_key(latest: LatestEvaluations, keys: WorkloadKeys) -> dict[tuple[str, ApplyKey], dict[str, str]]:
    groups: dict[tuple[str, ApplyKey], dict[str, str]] = {}
    for trace, reason in latest.excluded:
        key = keys.of(trace.workload)
        if key is not None and trace.evaluation is not None and trace.solution is not None:
            groups.setdefault((trace.evaluation.environment.hardware, key), {})[trace.solution] = reason
    return groups


class _Ranker:
    """Ranks the solutions of one definition on one hardware."""

    def __init__(self, facts: Mapping[str, SolutionFacts], criteria: SelectionCriteria, hacks: set[str]) -> None:
        self.rankings: dict[ApplyKey, Ranking] = {}
        self._facts = facts
        self._criteria = criteria
        self._baseline_criteria = criteria.without_error_bounds
        self._hacks = hacks
        self._least = log_margin(criteria.margin)
        self._disqualified: set[str] = set()
        self._scores_by_key: list[list[Score]] = []

    def add(self, key: ApplyKey, runs: Sequence[WorkloadRun], excluded: Mapping[str, str]) -> None:
        """Rank the solutions at one key."""
        measured, left_out = self._eligible(runs)
        ranked = score_solutions(measured)
        no_winner = "no solution passed here"
        if self._criteria.baseline is not None:
            ranked, no_winner = self._faster_than_baseline(ranked, self._criteria.baseline, left_out)
        self._disqualified.update(left_out)
        self._scores_by_key.append(ranked)
        for name, why in excluded.items():
            if not any(name in run for _, run in runs):
                left_out[name] = why
        order, reason = self._in_order(ranked) if ranked else (ranked, no_winner)
        self.rankings[key] = Ranking(tuple([_candidate(s) for s in order]), reason, tuple(sorted(left_out.items())))

    def _eligible(self, runs: Sequence[WorkloadRun]) -> tuple[list[dict[str, Measurement]], dict[str, str]]:
        """The measurements of eligible solutions on each workload, and why others are left out."""
        left_out: dict[str, str] = {}
        found: list[dict[str, Measurement]] = []
        baseline, hacks = self._criteria.baseline, self._hacks
        for uuid, run in sorted(runs, key=itemgetter(0)) if len(runs) > 1 else runs:
            of_run: dict[str, Measurement] = {}
            for name, trace in run.items():
                criteria = self._baseline_criteria if name == baseline else self._criteria
                value = measure(trace.evaluation, criteria)
                if name in hacks:
                    left_out[name] = "an evaluation of it is a REWARD_HACK"
                elif type(value) is Measurement:
                    of_run[name] = value
                else:
                    left_out.setdefault(name, f"{value} on workload {uuid}")
            found.append(of_run)
        if len(found) > 1 and left_out:
            found = [{name: m for name, m in of_run.items() if name not in left_out} for of_run in found]
        return found, left_out

    def _faster_than_baseline(
        self, ranked: list[Score], name: str, left_out: dict[str, str]
    ) -> tuple[list[Score], str]:
        """The solutions that are faster than the baseline, and the reason if there is none."""
        baseline = next((s for s in ranked if s.name == name), None)
        if baseline is None:
            return [], f"the baseline {name!r} has no passing evaluation here"
        others = [s for s in ranked if s is not baseline]
        faster = [s for s in others if is_faster(s, baseline, self._least)]
        left_out.update({s.name: f"not faster than the baseline {name!r}" for s in others if s not in faster})
        return faster, f"none of {len(others)} is faster than the baseline {name!r}"

    def _in_order(self, ranked: list[Score]) -> tuple[list[Score], str]:
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

    def _preferred(self, ranked: list[Score]) -> tuple[Score, int]:
        """The winner, and the number of others that are as fast as the fastest."""
        fastest, least = ranked[0], self._least
        rivals = [s for s in ranked[1:] if not are_separate(fastest, s, least)]
        return min([fastest, *rivals], key=self._by_simplicity) if rivals else fastest, len(rivals)

    def _by_simplicity(self, score: Score) -> tuple[int, int, int, str]:
        facts = self._facts[score.name]
        rank = _LANGUAGE_RANK.get(facts.language, len(_LANGUAGE_RANK))
        return score.coverage, rank, facts.source_bytes, facts.name

    def best(self) -> Ranking | None:
        """The ranking over all keys that were added."""
        ratios: dict[str, list[float]] = {}
        measured: dict[str, list[tuple[int, Measurement]]] = {}
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
        reason = (
            f"serves {-keys} of {len(self.rankings)} keys, at {_format_ratio(ratio)} times the latency of the fastest"
        )
        candidates = tuple([_merged(name, measured[name]) for name in order])
        left_out = tuple((name, "not eligible at a key") for name in sorted(self._disqualified))
        return Ranking(candidates, reason, left_out)


def _candidate(score: Score) -> Candidate:
    measured = score.measured
    if len(measured) > 1:
        return _merged(score.name, measured)
    latency_ms, interval_ms, has_setup, (atol, rtol, ratio), may_capture = measured[0][1]
    return Candidate(score.name, latency_ms, interval_ms, has_setup, atol, rtol, ratio, may_capture=may_capture)


def _merged(name: str, numbered: Sequence[tuple[int, Measurement]]) -> Candidate:
    measured = [measurement for _, measurement in numbered]
    latency, interval = mean_logarithms(measured)
    interval_ms = None if interval is None else (math.exp(interval[0]), math.exp(interval[1]))
    tolerance = loosest_tolerance(m.tolerance for m in measured)
    has_setup, may_capture = any(m.has_setup for m in measured), all(m.may_capture for m in measured)
    return Candidate(name, math.exp(latency), interval_ms, has_setup, *tolerance, len(measured), may_capture)


def _format_ratio(logarithm: float) -> str:
    return f"{math.exp(logarithm):.3g}" if logarithm < 700 else "over 1e304"
