"""Selection rules: which solution serves which key, as a pure function of traces.

The rules, in the order in which they apply:

1. *Evaluations that count.* Those of present solutions in their present version: an evaluation with another
   ``extra["solution_hash"]`` does not count. Of several on the same hardware and workload, the latest
   counts: by timestamp, then by the order of appending.
2. *Eligible solutions.* An eligible solution is not refused by the settings (``enabled``, ``exclude``, ``only``). It
   passed on every workload of the key that it ran, has no flag of `UNROUTED_FLAGS`, has errors within ``max_atol`` and
   ``max_rtol``, and has a positive, finite latency. One evaluation that fails this excludes the solution at the key; a
   REWARD_HACK excludes it everywhere.
3. *Score.* On each workload, a solution has a ratio to the fastest one. Its score at a key is the geometric
   mean of its ratios, so running only the easy workloads is no advantage. Where all solutions ran the same
   workloads, this orders them by the geometric mean of their latencies.
4. *Winner.* The fastest solution, if it is separated from the others: by disjoint intervals where both have one,
   else by latencies that differ by more than ``margin``. Among those not separated from the fastest, the one that
   ran most workloads of the key, then the simplest (by language, bytes of source, name). The others follow by speed.
5. *Setup.* A solution with a `setup` serves only planned calls. If it wins, the best one without, by rule 4,
   comes second.
6. *Fallback.* Only solutions remain that are faster than the fallback (as in rule 4, on the workloads that both ran),
   unless ``require_speedup`` is off. The fallback's time is that of the ``baseline`` where one is named: interleaved
   with the solution if its trace states that, else of the baseline's own trace. Without a baseline it is
   the reference's time in the solution's trace. Without a time of the fallback nothing is selected. The bounds on
   errors do not apply to the baseline, which serves calls anyway and is no candidate.
7. *Best over all keys* of a hardware, without those of inputs that are not contiguous. Of the solutions that
   rules 2 and 6 excluded at no key, the one with most keys, then with the best geometric mean of its ratios to the
   fastest candidate of each key, then by name.

An evaluation counts for a workload with a layout only if it states the same layout, and such workloads have keys of
their own.

Of calls with padded indices (`fib_schema.padded_indices`), keys that differ only in the size of the indices are one
key beside the others, if an evaluation states that such calls were right. One solution serves all sizes, so this key is
ranked as with ``batch_invariant``; only solutions for which all its evaluations state this serve calls.

With ``batch_invariant``, keys that differ only in batch axes are one key. A solution must have run at each of them, and
the total time over them replaces the score; see `batch_axes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import attrs
from fib_schema import Definition, Solution, Trace
from fib_schema.display import counted
from fib_schema.padded_indices import padded_indices_of

from ..config import ApplyConfig
from ..key import ApplyKey, ApplyKeyBuilder
from .batch_axes import batch_axes, mean_over_keys
from .fallback_times import FallbackComparison
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
from .rankings import Candidate, HardwareRankings, Ranking
from .scores import Mean, Score, are_separate, log_margin, mean_logarithms, score_over_keys, score_solutions

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
    latest = latest_evaluations(definition, of_definition, {name: fact.hash for name, fact in by_name.items()})
    keys = WorkloadKeys(key_builder)
    excluded = _excluded_by_key(latest, keys)
    criteria = SelectionCriteria.from_config(config)
    axes = batch_axes(definition) if criteria.is_batch_invariant else ()
    padded = padded_indices_of(definition)
    rankings = {}
    for hardware, runs in latest.runs.items():
        ranker = _Ranker(by_name, criteria, latest.reward_hacks)
        groups: dict[ApplyKey, list[tuple[ApplyKey, WorkloadRun]]] = {}
        for key, runs_of_key in keys.runs_by_key(runs).items():
            numbered = [(key, run) for run in runs_of_key]
            groups.setdefault(key.without_axes(axes), []).extend(numbered)
            if padded is not None:
                of_padded = key.without_axes({*axes, padded.axis}).with_padding(padded.axis)
                groups.setdefault(of_padded, []).extend(numbered)
        for key, group in groups.items():
            left_out = {}
            for one in dict.fromkeys(one for one, _ in group):
                left_out.update(excluded.get((hardware, one), {}))
            ranker.add(key, group, left_out)
        rankings[hardware] = HardwareRankings(hardware, ranker.rankings, ranker.best(), axes)
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

    def add(self, key: ApplyKey, group: Sequence[tuple[ApplyKey, WorkloadRun]], excluded: Mapping[str, str]) -> None:
        """Rank the solutions at one key; one of padded indices is left out if no solution was right with such.

        Args:
            key: The key.
            group: The workloads, each with the key before batch axes were left out.
            excluded: Solutions of which no evaluation counts, each with the reason.
        """
        group = sorted(group, key=lambda item: item[1][0]) if len(group) > 1 else group
        runs = [run for _, run in group]
        measured, left_out = self._eligible(runs)
        is_padded = key.padded_axis is not None
        if is_padded and not any(m.may_pad for of_run in measured for m in of_run.values()):
            return
        mean: Mean = mean_logarithms
        if self._criteria.is_batch_invariant or is_padded:
            sizes = [one for one, _ in group]
            mean = mean_over_keys(sizes)
            ranked = score_over_keys(_measured_everywhere(measured, sizes, left_out, self._criteria.baseline), mean)
        else:
            ranked = score_solutions(measured)
        compared = FallbackComparison.of(self._criteria, measured, self._least, mean)
        ranked, no_winner, refused = compared.faster_than_fallback(ranked, left_out)
        if key.is_exact:  # calls of other keys have neither these strides nor padded indices
            self._disqualified.update(left_out)
            self._scores_by_key.append(ranked)
        for name, why in excluded.items():
            if not any(name in run for _, run in runs):
                left_out[name] = why
        order, reason = self._in_order(ranked) if ranked else (ranked, no_winner)
        candidates = tuple([compared.with_fallback(_candidate(s, mean), s) for s in order])
        shown = None if refused is None or order else compared.with_fallback(_candidate(refused, mean), refused)
        self.rankings[key] = Ranking(
            candidates, reason, tuple(sorted(left_out.items())), compared.label, shown, is_padded
        )

    def _eligible(self, runs: Sequence[WorkloadRun]) -> tuple[list[dict[str, Measurement]], dict[str, str]]:
        """The measurements of eligible solutions on each workload, and why others are left out."""
        left_out: dict[str, str] = {}
        found: list[dict[str, Measurement]] = []
        baseline, hacks = self._criteria.baseline, self._hacks
        for uuid, run in runs:
            of_run: dict[str, Measurement] = {}
            for name, trace in run.items():
                criteria = self._baseline_criteria if name == baseline else self._criteria
                value = measure(trace.evaluation, criteria)
                if name in hacks:
                    left_out[name] = "an evaluation of it is a REWARD_HACK"
                elif (refusal := self._criteria.refusal(name)) is not None:
                    left_out[name] = refusal
                elif type(value) is Measurement:
                    of_run[name] = value
                else:
                    left_out.setdefault(name, f"{value} on workload {uuid}")
            found.append(of_run)
        if len(found) > 1 and left_out:
            found = [{name: m for name, m in of_run.items() if name not in left_out} for of_run in found]
        return found, left_out

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
        share = f"{-keys} of {counted(len(self.rankings), 'key')}"
        reason = f"serves {share}, at {_format_ratio(ratio)} times the latency of the fastest"
        candidates = tuple([_merged(name, measured[name]) for name in order])
        left_out = tuple((name, "not eligible at a key") for name in sorted(self._disqualified))
        return Ranking(candidates, reason, left_out)


def _measured_everywhere(
    measured: Sequence[Mapping[str, Measurement]],
    sizes: Sequence[ApplyKey],
    left_out: dict[str, str],
    baseline: str | None,
) -> list[dict[str, Measurement]]:
    """The measurements of solutions that ran all workloads; the reason why others are left out is added."""
    names = dict.fromkeys(name for run in measured for name in run)
    for name in names:
        missing = next((size for size, run in zip(sizes, measured, strict=True) if name not in run), None)
        if missing is not None and name != baseline:
            left_out.setdefault(
                name, f"not measured on all workloads of {missing}, which one solution has to serve too"
            )
    kept = [name for name in names if all(name in run for run in measured)]
    return [{name: run[name] for name in kept} for run in measured]


def _candidate(score: Score, mean: Mean = mean_logarithms) -> Candidate:
    measured = score.measured
    if len(measured) > 1:
        return _merged(score.name, measured, mean)
    latency_ms, interval_ms, has_setup, (atol, rtol, ratio), may_capture, may_pad, _ = measured[0][1]
    return Candidate(score.name, latency_ms, interval_ms, has_setup, atol, rtol, ratio, 1, may_capture, may_pad)


def _merged(name: str, numbered: Sequence[tuple[int, Measurement]], mean: Mean = mean_logarithms) -> Candidate:
    measured = [measurement for _, measurement in numbered]
    latency, interval = mean(numbered)
    interval_ms = None if interval is None else (math.exp(interval[0]), math.exp(interval[1]))
    tolerance = loosest_tolerance(m.tolerance for m in measured)
    has_setup = any(m.has_setup for m in measured)
    may_capture, may_pad = all(m.may_capture for m in measured), all(m.may_pad for m in measured)
    return Candidate(name, math.exp(latency), interval_ms, has_setup, *tolerance, len(measured), may_capture, may_pad)


def _format_ratio(logarithm: float) -> str:
    return f"{math.exp(logarithm):.3g}" if logarithm < 700 else "over 1e304"
