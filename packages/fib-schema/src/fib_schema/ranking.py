"""Scores of solutions and authors: mean speedups over a baseline author's solution.

Source: the documented scoring rules of the public flashinfer-trace leaderboard.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import attrs

from .errors import FibError
from .trace import Trace


@attrs.frozen
class SpeedupMetrics:
    """A score."""

    avg_speedup: float
    """Mean of baseline latency / latency; 0 if anything failed."""
    workload_count: int
    """On how many workloads it rests."""


@attrs.frozen
class TraceSetSummary:
    """Counts of traces, and the authors by score."""

    total: int
    passed: int
    failed: int
    rankings: tuple[tuple[str, SpeedupMetrics], ...]
    """Authors and their scores, the best first."""
    unranked: tuple[str, ...]
    """Definitions that the rankings leave out, for they lack one solution of the baseline author."""


@attrs.frozen
class ScoringError(FibError, ValueError):
    """A score that cannot be computed."""

    definition: str
    problem: str

    def __str__(self) -> str:
        return f"definition {self.definition!r}: {self.problem}"


@attrs.define
class _Results:
    """What the traces of one solution say."""

    latency_ms: dict[str, float] = attrs.field(factory=dict)
    """The lowest latency of a passing trace, by workload."""
    has_failed: bool = False


@attrs.frozen
class _Table:
    trace_count: int
    results: Mapping[str, _Results]


class ScoreBoard:
    """Computes scores; the traces of a definition are digested once."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, frozenset[str]], _Table] = {}

    def solution_score(
        self, definition: str, solution: str, baseline: str, traces: list[Trace], allow_flags: frozenset[str]
    ) -> SpeedupMetrics | None:
        """The score of a solution, or None if it shares no workload with the baseline.

        Raises:
            ScoringError: A passing trace has a latency that is no positive number.
        """
        results = self._table(definition, traces, allow_flags).results
        found = results.get(solution)
        if found is None:
            return None
        base = results.get(baseline)
        shared = found.latency_ms.keys() & base.latency_ms.keys() if base else set()
        if found.has_failed:
            return SpeedupMetrics(0.0, len(shared))
        if not shared or base is None:
            return None
        total = sum(
            _valid(base.latency_ms[uuid], definition, baseline) / _valid(found.latency_ms[uuid], definition, solution)
            for uuid in shared
        )
        return SpeedupMetrics(total / len(shared), len(shared))

    def _table(self, definition: str, traces: list[Trace], allow_flags: frozenset[str]) -> _Table:
        key = definition, allow_flags
        table = self._tables.get(key)
        if table is None or table.trace_count != len(traces):
            table = self._tables[key] = _Table(len(traces), _digest(traces, allow_flags))
        return table


@attrs.frozen
class League:
    """Who takes part: solutions by definition, their authors, and everyone's traces."""

    solution_names: Mapping[str, tuple[str, ...]]
    authors: Mapping[str, str]
    traces: Mapping[str, list[Trace]]
    board: ScoreBoard
    allow_flags: frozenset[str] = frozenset()
    """Flags that do not keep a trace out, of those that do otherwise."""

    def solution_score(self, solution: str, baseline_author: str) -> SpeedupMetrics | None:
        """The score of one solution; see `TraceSet.get_solution_score`."""
        for definition, names in self.solution_names.items():
            if solution in names:
                return self._score(definition, solution, self._baseline(definition, baseline_author))
        return None

    def author_score(self, author: str, baseline_author: str, scope: Iterable[str]) -> SpeedupMetrics | None:
        """The score of one author; see `TraceSet.get_author_score`."""
        taken = [d for d in scope if any(self.authors[name] == author for name in self.solution_names[d])]
        best = [self._best_by_author(definition, baseline_author).get(author) for definition in taken]
        return _mean(score for score in best if score)

    def ranking(self, baseline_author: str, scope: Iterable[str]) -> list[tuple[str, SpeedupMetrics]]:
        """All authors with a score; see `TraceSet.rank_authors`."""
        scores: dict[str, list[SpeedupMetrics]] = {}
        for definition in scope:
            for author, score in self._best_by_author(definition, baseline_author).items():
                scores.setdefault(author, []).append(score)
        ranked = [(author, mean) for author, group in scores.items() if (mean := _mean(group))]
        return sorted(ranked, key=lambda item: (-item[1].avg_speedup, item[0]))

    def has_one_baseline(self, definition: str, author: str) -> bool:
        """Whether the baseline author has exactly one solution of a definition."""
        return len(self._solutions_by(definition, author)) == 1

    def _best_by_author(self, definition: str, baseline_author: str) -> dict[str, SpeedupMetrics]:
        baseline = self._baseline(definition, baseline_author)
        best: dict[str, SpeedupMetrics] = {}
        for name in self.solution_names[definition]:
            score, author = self._score(definition, name, baseline), self.authors[name]
            if score and (author not in best or score.avg_speedup > best[author].avg_speedup):
                best[author] = score
        return best

    def _score(self, definition: str, solution: str, baseline: str) -> SpeedupMetrics | None:
        if solution == baseline:
            return None
        traces = self.traces.get(definition, [])
        return self.board.solution_score(definition, solution, baseline, traces, self.allow_flags)

    def _baseline(self, definition: str, author: str) -> str:
        found = self._solutions_by(definition, author)
        if len(found) != 1:
            count = f"{len(found)} solutions ({', '.join(found)})" if found else "no solution"
            raise ScoringError(definition, f"the baseline author {author!r} has {count}, wanted exactly one")
        return found[0]

    def _solutions_by(self, definition: str, author: str) -> list[str]:
        return [n for n in self.solution_names.get(definition, ()) if self.authors[n] == author]


def _mean(scores: Iterable[SpeedupMetrics]) -> SpeedupMetrics | None:
    """The mean of the best scores of several definitions, or None if there are none."""
    kept = list(scores)
    if not kept:
        return None
    mean = math.fsum(score.avg_speedup for score in kept) / len(kept)
    return SpeedupMetrics(mean, sum(score.workload_count for score in kept))


def _digest(traces: list[Trace], allow_flags: frozenset[str]) -> dict[str, _Results]:
    results: dict[str, _Results] = {}
    for trace in traces:
        evaluation = trace.evaluation
        if evaluation is None or trace.solution is None or not evaluation.is_ranked(allow_flags):
            continue
        found = results.get(trace.solution)
        if found is None:
            found = results[trace.solution] = _Results()
        performance = evaluation.performance
        if performance is None:
            found.has_failed = True
            continue
        uuid, latency = trace.workload.uuid, performance.latency_ms
        lowest = found.latency_ms.get(uuid)
        if lowest is None or latency < lowest:
            found.latency_ms[uuid] = latency
    return results


def _valid(latency: float, definition: str, solution: str) -> float:
    if not 0 < latency < math.inf:
        problem = f"a passing trace of {solution!r} has the latency {latency} ms, which is no positive number"
        raise ScoringError(definition, problem)
    return latency
