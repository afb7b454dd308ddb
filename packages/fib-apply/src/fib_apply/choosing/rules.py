"""Which solution serves which key: pure rules on traces.

The rules, in the order in which they apply:

1. *What counts.* Evaluations of solutions that are at hand, in the version that is at hand: one
   whose ``extra["solution_hash"]`` is another does not count. Of several on the same hardware and
   workload the latest counts: by its time, then by the order of appending.
2. *Who may win at a key.* Who passed on every workload of the key that it ran, ranked (no flag of
   `fib_schema.UNRANKED_FLAGS`), with errors within ``max_atol`` and ``max_rtol`` and a positive,
   finite latency. One evaluation that falls short keeps a solution out of that key; one that says
   REWARD_HACK keeps it out everywhere.
3. *How fast.* On each workload a solution has a ratio to the fastest there; at a key it has the
   geometric mean of its ratios. So one that ran only the easy workloads gains nothing by it.
   Where all ran the same workloads this orders them by the geometric mean of their latencies.
4. *Who wins.* The fastest, if it is separated from the others: by intervals that do not overlap
   where both have one, else by latencies that differ by more than ``margin``. Among those that are
   not separated from the fastest: the one that ran most workloads of the key, then the simplest
   (by language, then bytes of source, then name). The others follow by speed.
5. *Setup.* A solution with a `setup` serves only callers that plan. If one wins, the best without,
   by rule 4, comes second.
6. *Baseline.* With ``baseline`` set, those remain that beat it (as in rule 4, on the workloads
   that both ran); the bounds on errors do not hold for itself, for it serves anyway. Where it
   has no passing evaluation nothing is chosen.
7. *Best.* Over all keys of a hardware: of the solutions that fell short at no key (by rule 2 or 6)
   the one with most keys, then with the best geometric mean of its ratios to the fastest
   candidate of each key, then by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

import attrs
from fib_schema import Definition, Solution, Trace

from ..config import ApplyConfig
from ..key import ApplyKey, ApplyKeyBuilder
from .measurements import Keys, Latest, Measurement, Rules, Run, latest_evaluations, loosest, measure
from .standings import Standing, are_separate, beats, mean_logarithms, separation, standings

LANGUAGES = ("python", "triton", "tilelang", "cpp", "cuda")
"""From the simplest on; what is not among them comes last."""
_LANGUAGE_RANK = {language: rank for rank, language in enumerate(LANGUAGES)}
_CHEATED = "an evaluation of it is a REWARD_HACK"


@attrs.frozen
class SolutionFacts:
    """What choosing needs to know of a solution."""

    name: str
    language: str
    source_bytes: int
    hash: str

    @classmethod
    def from_solution(cls, solution: Solution) -> SolutionFacts:
        """The facts on a solution."""
        size = sum(len(source.content.encode("utf-8", "surrogatepass")) for source in solution.sources)
        return cls(solution.name, str(solution.spec.language), size, solution.hash())


@attrs.frozen
class Candidate:
    """A solution that may serve a key."""

    solution: str
    latency_ms: float
    """The geometric mean over its workloads."""
    interval_ms: tuple[float, float] | None = None
    """Likewise, if it was measured on every workload."""
    has_setup: bool = False
    """Whether it needs a plan: plain calls cannot use it."""
    atol: float | None = None
    """What it passed with, as recorded; of several workloads the loosest."""
    rtol: float | None = None
    required_matched_ratio: float | None = None
    workloads: int = 1
    """How many of the key's it ran."""
    may_capture: bool = True
    """Whether it can be called while a CUDA graph is captured: not if it was timed without one."""


@attrs.frozen
class Ranking:
    """The candidates for a key, or for all keys, in order of preference."""

    candidates: tuple[Candidate, ...]
    reason: str
    """In one line: why the first is first, or why there is none."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Other solutions that were measured there, each with the reason."""

    @property
    def plain(self) -> Candidate | None:
        """The first that needs no plan."""
        return next((candidate for candidate in self.candidates if not candidate.has_setup), None)


@attrs.frozen
class Choices:
    """The rankings of one definition on one hardware."""

    hardware: str
    by_key: Mapping[ApplyKey, Ranking]
    best: Ranking | None = None
    """Over all keys; None if no solution passed everywhere it was tried."""


@attrs.frozen
class Selection:
    """The choices of one definition by hardware, and what could not be used."""

    choices: Mapping[str, Choices]
    problems: tuple[str, ...] = ()


def choose(
    definition: Definition,
    traces: Iterable[Trace],
    facts: Iterable[SolutionFacts],
    config: ApplyConfig,
    key_builder: ApplyKeyBuilder,
) -> Selection:
    """Choose solutions for every hardware and key; the module's text states the rules.

    Args:
        definition: What the traces are of; those of another are not looked at.
        traces: In the order in which they were appended.
        facts: On the solutions that are at hand.
        config: Settings; `Rules` says which of them matter here.
        key_builder: Makes keys of workloads; those for which it fails are left out, and reported.
    """
    by_name = {fact.name: fact for fact in facts}
    of_definition = [trace for trace in traces if trace.definition == definition.name]
    latest = latest_evaluations(of_definition, {name: fact.hash for name, fact in by_name.items()})
    keys = Keys(key_builder)
    aside = _set_aside_by_key(latest, keys)
    rules = Rules.from_config(config)
    chosen = {}
    for hardware, runs in latest.runs.items():
        chooser = _Chooser(by_name, rules, latest.cheats)
        for key, runs_of_key in keys.runs_by_key(runs).items():
            chooser.add(key, runs_of_key, aside.get((hardware, key), {}))
        chosen[hardware] = Choices(hardware, chooser.rankings, chooser.best())
    return Selection(chosen, tuple(keys.problems))


def _set_aside_by_key(latest: Latest, keys: Keys) -> dict[tuple[str, ApplyKey], dict[str, str]]:
    groups: dict[tuple[str, ApplyKey], dict[str, str]] = {}
    for trace, reason in latest.set_aside:
        key = keys.of(trace.workload)
        if key is not None and trace.evaluation is not None and trace.solution is not None:
            groups.setdefault((trace.evaluation.environment.hardware, key), {})[trace.solution] = reason
    return groups


class _Chooser:
    """Ranks the solutions of one definition on one hardware."""

    def __init__(self, facts: Mapping[str, SolutionFacts], rules: Rules, cheats: set[str]) -> None:
        self.rankings: dict[ApplyKey, Ranking] = {}
        self._facts = facts
        self._rules = rules
        self._baseline_rules = rules.without_bounds
        self._cheats = cheats
        self._least = separation(rules.margin)
        self._fell_short: set[str] = set()
        self._standings_by_key: list[list[Standing]] = []

    def add(self, key: ApplyKey, runs: Sequence[Run], aside: Mapping[str, str]) -> None:
        """Rank the solutions at one key."""
        measured, left_out = self._qualified(runs)
        ranked = standings(measured)
        no_winner = "no solution passed here"
        if self._rules.baseline is not None:
            ranked, no_winner = self._faster_than_baseline(ranked, self._rules.baseline, left_out)
        self._fell_short.update(left_out)
        self._standings_by_key.append(ranked)
        for name, why in aside.items():
            if not any(name in run for _, run in runs):
                left_out[name] = why
        order, reason = self._in_order(ranked) if ranked else (ranked, no_winner)
        self.rankings[key] = Ranking(tuple([_candidate(s) for s in order]), reason, tuple(sorted(left_out.items())))

    def _qualified(self, runs: Sequence[Run]) -> tuple[list[dict[str, Measurement]], dict[str, str]]:
        """What counts on each workload, and who is left out for what reason."""
        left_out: dict[str, str] = {}
        found: list[dict[str, Measurement]] = []
        baseline, cheats = self._rules.baseline, self._cheats
        for uuid, run in sorted(runs, key=itemgetter(0)) if len(runs) > 1 else runs:
            of_run: dict[str, Measurement] = {}
            for name, trace in run.items():
                value = measure(trace.evaluation, self._baseline_rules if name == baseline else self._rules)
                if name in cheats:
                    left_out[name] = _CHEATED
                elif type(value) is Measurement:
                    of_run[name] = value
                else:
                    left_out.setdefault(name, f"{value} on workload {uuid}")
            found.append(of_run)
        if len(found) > 1 and left_out:
            found = [{name: m for name, m in of_run.items() if name not in left_out} for of_run in found]
        return found, left_out

    def _faster_than_baseline(
        self, ranked: list[Standing], name: str, left_out: dict[str, str]
    ) -> tuple[list[Standing], str]:
        """Those that remain beside a baseline, and why, should there be none."""
        baseline = next((s for s in ranked if s.name == name), None)
        if baseline is None:
            return [], f"the baseline {name!r} has no passing evaluation here"
        others = [s for s in ranked if s is not baseline]
        faster = [s for s in others if beats(s, baseline, self._least)]
        left_out.update({s.name: f"not faster than the baseline {name!r}" for s in others if s not in faster})
        return faster, f"none of {len(others)} is faster than the baseline {name!r}"

    def _in_order(self, ranked: list[Standing]) -> tuple[list[Standing], str]:
        """By preference, and why the first is first; `ranked` are in order of speed."""
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

    def _preferred(self, ranked: list[Standing]) -> tuple[Standing, int]:
        """The winner, and how many others are as fast as the fastest."""
        fastest, least = ranked[0], self._least
        rivals = [s for s in ranked[1:] if not are_separate(fastest, s, least)]
        return min([fastest, *rivals], key=self._by_simplicity) if rivals else fastest, len(rivals)

    def _by_simplicity(self, standing: Standing) -> tuple[int, int, int, str]:
        facts = self._facts[standing.name]
        rank = _LANGUAGE_RANK.get(facts.language, len(_LANGUAGE_RANK))
        return standing.coverage, rank, facts.source_bytes, facts.name

    def best(self) -> Ranking | None:
        """The ranking over all keys that were added."""
        ratios: dict[str, list[float]] = {}
        measured: dict[str, list[tuple[int, Measurement]]] = {}
        for ranked in self._standings_by_key:
            for standing in ranked:
                if standing.name not in self._fell_short:
                    ratios.setdefault(standing.name, []).append(standing.ratio - ranked[0].ratio)
                    measured.setdefault(standing.name, []).extend(standing.measured)
        means = {name: (-len(values), math.fsum(values) / len(values), name) for name, values in ratios.items()}
        order = sorted(means, key=means.__getitem__)
        if not order:
            return None
        keys, ratio, _ = means[order[0]]
        reason = f"serves {-keys} of {len(self.rankings)} keys, at {_shown(ratio)} times the fastest's latency"
        candidates = tuple([_merged(name, measured[name]) for name in order])
        left_out = tuple((name, "fell short at a key") for name in sorted(self._fell_short))
        return Ranking(candidates, reason, left_out)


def _candidate(standing: Standing) -> Candidate:
    measured = standing.measured
    if len(measured) > 1:
        return _merged(standing.name, measured)
    latency_ms, interval_ms, has_setup, (atol, rtol, ratio), may_capture = measured[0][1]
    return Candidate(standing.name, latency_ms, interval_ms, has_setup, atol, rtol, ratio, may_capture=may_capture)


def _merged(name: str, numbered: Sequence[tuple[int, Measurement]]) -> Candidate:
    measured = [measurement for _, measurement in numbered]
    latency, interval = mean_logarithms(measured)
    interval_ms = None if interval is None else (math.exp(interval[0]), math.exp(interval[1]))
    tolerance = loosest(m.tolerance for m in measured)
    has_setup, may_capture = any(m.has_setup for m in measured), all(m.may_capture for m in measured)
    return Candidate(name, math.exp(latency), interval_ms, has_setup, *tolerance, len(measured), may_capture)


def _shown(logarithm: float) -> str:
    return f"{math.exp(logarithm):.3g}" if logarithm < 700 else "countless"
