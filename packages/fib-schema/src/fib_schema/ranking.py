"""Best traces, and scores of solutions and authors: mean speedups over a baseline author's solution.

Source: the documented scoring rules of the public flashinfer-trace leaderboard.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping

import attrs

from .definition import Definition
from .errors import FibError
from .measured_layouts import counting_traces
from .trace import Trace

AxesKey = tuple[tuple[str, int], ...]
_Candidate = tuple[float, float, Trace, bool]
"""Absolute error, relative error, trace, whether it is ranked whatever flags are allowed: a loop over attributes
takes three times as long."""


@attrs.frozen
class SpeedupMetrics:
    """A score."""

    avg_speedup: float
    """Mean of baseline latency / latency; 0 if anything failed."""
    workload_count: int
    """The number of workloads in the mean."""


@attrs.frozen
class TraceSetSummary:
    """Counts of traces, and the authors by score."""

    total: int
    passed: int
    failed: int
    rankings: tuple[tuple[str, SpeedupMetrics], ...]
    """Authors and their scores, the best first."""
    unranked: tuple[str, ...]
    """Definitions without exactly one solution of the baseline author; the rankings leave them out."""


@attrs.frozen
class ScoringError(FibError, ValueError):
    """A score that cannot be computed."""

    definition: str
    problem: str

    def __str__(self) -> str:
        return f"definition {self.definition!r}: {self.problem}"


@attrs.frozen
class _PassingTraces:
    """Index of the passing traces of one definition."""

    trace_count: int
    """Number of traces of the definition when the index was made."""
    candidates: list[_Candidate]
    """In the order of the traces."""
    by_speedup: dict[AxesKey | None, list[_Candidate]]
    """Candidates by axes, the fastest first; None holds those of all axes."""


@attrs.define
class _Results:
    """Summary of one solution's traces."""

    latency_ms: dict[str, float] = attrs.field(factory=dict)
    """The lowest latency of a passing trace, by workload."""
    has_failed: bool = False


class Rankings(ABC):
    """Queries about the evaluated traces of a set; a base class of `TraceSet`, which stores them.

    Evaluations of another layout than that of their workload do not count, see `measured_layouts`.
    """

    def __init__(self) -> None:
        self._passing_traces: dict[str, _PassingTraces] = {}
        self._results: dict[tuple[str, frozenset[str]], tuple[int, Mapping[str, _Results]]] = {}

    @property
    @abstractmethod
    def definitions(self) -> Mapping[str, Definition]:
        """The definitions by name."""

    @property
    @abstractmethod
    def workloads(self) -> Mapping[str, list[Trace]]:
        """The workload traces by the name of their definition."""

    @property
    @abstractmethod
    def traces(self) -> Mapping[str, list[Trace]]:
        """The traces by the name of their definition."""

    @abstractmethod
    def get_definition(self, name: str) -> Definition:
        """The definition of that name."""

    @abstractmethod
    def solution_names(self, def_name: str | None = None) -> tuple[str, ...]:
        """The names of all solutions, or of one definition's."""

    @abstractmethod
    def _owner(self, solution_name: str) -> tuple[str, str] | None:
        """The definition and the author of a solution; None if there is no such solution."""

    def filter_traces(self, def_name: str, atol: float = 1e-2, rtol: float = 1e-2) -> list[Trace]:
        """The passing traces of a definition within error bounds, in the order of the files.

        Args:
            def_name: The definition's name.
            atol: Largest `max_absolute_error` to accept.
            rtol: Largest `max_relative_error` to accept.
        """
        candidates = self._passing(def_name).candidates
        return [trace for absolute, relative, trace, _ in candidates if absolute <= atol and relative <= rtol]

    def get_best_trace(
        self,
        def_name: str,
        axes: Mapping[str, int] | None = None,
        max_abs_error: float = 1e-2,
        max_rel_error: float = 1e-2,
        *,
        allow_flags: Collection[str] = (),
    ) -> Trace | None:
        """The passing trace with the largest speedup, or None if no trace qualifies.

        Args:
            def_name: The definition's name.
            axes: Consider only workloads with exactly these axis values; None means all.
            max_abs_error: Largest `max_absolute_error` to accept.
            max_rel_error: Largest `max_relative_error` to accept.
            allow_flags: Flags (of `UNRANKED_FLAGS`) that do not disqualify a trace.
        """
        key = None if axes is None else _axes_key(axes)
        for absolute, relative, trace, is_ranked in self._passing(def_name).by_speedup.get(key, ()):
            is_close = absolute <= max_abs_error and relative <= max_rel_error
            if is_close and (is_ranked or _is_ranked(trace, allow_flags)):
                return trace
        return None

    def get_solution_score(
        self, solution_name: str, baseline_author: str = "baseline", *, allow_flags: Collection[str] = ()
    ) -> SpeedupMetrics | None:
        """The mean speedup of a solution over the baseline author's, on workloads that both passed.

        Of several traces on one workload the one with the lowest latency counts. If any trace of
        the solution has failed, the score is 0.

        Args:
            solution_name: The solution.
            baseline_author: The author whose solution of the same definition has a speedup of 1.
            allow_flags: Flags (of `UNRANKED_FLAGS`) that do not exclude a trace.

        Returns:
            The score; None if the solution is unknown, is the baseline, or has no workload to compare.

        Raises:
            ScoringError: The baseline author has no solution or several for the definition, or a
                passing trace has an invalid latency (a ValueError).
        """
        owner = self._owner(solution_name)
        if owner is None:
            return None
        definition, _ = owner
        baseline = _baseline(definition, baseline_author, self._solutions_by(definition, baseline_author))
        return self._score(definition, solution_name, baseline, allow_flags)

    def get_author_score(
        self,
        author: str,
        baseline_author: str = "baseline",
        op_type: str | None = None,
        definition_name: str | None = None,
        *,
        allow_flags: Collection[str] = (),
    ) -> SpeedupMetrics | None:
        """The mean, over definitions in scope, of the author's best solution's score.

        Args:
            author: The author of the solutions to score.
            baseline_author: The author whose solutions have a speedup of 1.
            op_type: Only definitions of this op_type.
            definition_name: Only this definition.
            allow_flags: Flags (of `UNRANKED_FLAGS`) that do not exclude a trace.

        Returns:
            The score, or None if the author has no solution in scope that can be scored.

        Raises:
            UnknownName: There is no such definition (a KeyError).
            ScoringError: As `get_solution_score`.
            ValueError: Both `op_type` and `definition_name` are given.
        """
        scope = [name for name in self._scored(op_type, definition_name) if self._solutions_by(name, author)]
        best = (self._best_by_author(definition, baseline_author, allow_flags).get(author) for definition in scope)
        return _mean(score for score in best if score)

    def rank_authors(
        self,
        baseline_author: str = "baseline",
        op_type: str | None = None,
        definition_name: str | None = None,
        *,
        allow_flags: Collection[str] = (),
    ) -> list[tuple[str, SpeedupMetrics]]:
        """Every author with a score, the best first; equal scores in the order of names.

        Definitions without any solution are not in scope. Traces with a flag of `UNRANKED_FLAGS`
        do not count unless `allow_flags` names it.

        Raises:
            UnknownName: There is no such definition (a KeyError).
            ScoringError: A definition in scope has no solution or several of the baseline author,
                or a passing trace has an invalid latency (a ValueError).
            ValueError: Both `op_type` and `definition_name` are given.
        """
        return self._ranking(self._scored(op_type, definition_name), baseline_author, allow_flags)

    def summary(
        self,
        baseline_author: str = "baseline",
        op_type: str | None = None,
        definition_name: str | None = None,
        *,
        allow_flags: Collection[str] = (),
    ) -> TraceSetSummary:
        """Counts of traces in scope, and the authors ranked over definitions that have a baseline.

        Raises:
            UnknownName: There is no such definition (a KeyError).
            ScoringError: A passing trace in scope has an invalid latency (a ValueError).
            ValueError: Both `op_type` and `definition_name` are given.
        """
        groups = [self.traces.get(name, []) for name in _in_scope(self, op_type, definition_name)]
        passed = sum(trace.is_successful() for group in groups for trace in group)
        total = sum(map(len, groups))
        scored = self._scored(op_type, definition_name)
        ranked = [name for name in scored if len(self._solutions_by(name, baseline_author)) == 1]
        rankings = tuple(self._ranking(ranked, baseline_author, allow_flags))
        unranked = tuple(name for name in scored if name not in ranked)
        return TraceSetSummary(total, passed, total - passed, rankings, unranked)

    def _scored(self, op_type: str | None, definition_name: str | None) -> list[str]:
        """Definitions in scope that have solutions."""
        return [name for name in _in_scope(self, op_type, definition_name) if self.solution_names(name)]

    def _ranking(
        self, scope: Iterable[str], baseline_author: str, allow_flags: Collection[str]
    ) -> list[tuple[str, SpeedupMetrics]]:
        scores: dict[str, list[SpeedupMetrics]] = {}
        for definition in scope:
            for author, score in self._best_by_author(definition, baseline_author, allow_flags).items():
                scores.setdefault(author, []).append(score)
        ranked = [(author, mean) for author, group in scores.items() if (mean := _mean(group))]
        return sorted(ranked, key=lambda item: (-item[1].avg_speedup, item[0]))

    def _best_by_author(
        self, definition: str, baseline_author: str, allow_flags: Collection[str]
    ) -> dict[str, SpeedupMetrics]:
        baseline = _baseline(definition, baseline_author, self._solutions_by(definition, baseline_author))
        best: dict[str, SpeedupMetrics] = {}
        for name in self.solution_names(definition):
            score, owner = self._score(definition, name, baseline, allow_flags), self._owner(name)
            author = owner[1] if owner else ""
            if score and (author not in best or score.avg_speedup > best[author].avg_speedup):
                best[author] = score
        return best

    def _solutions_by(self, definition: str, author: str) -> list[str]:
        return [name for name in self.solution_names(definition) if self._owner(name) == (definition, author)]

    def _score(
        self, definition: str, solution: str, baseline: str, allow_flags: Collection[str]
    ) -> SpeedupMetrics | None:
        results = self._results_of(definition, frozenset(allow_flags))
        found, base = results.get(solution), results.get(baseline)
        if found is None or solution == baseline:
            return None
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

    def _passing(self, definition: str) -> _PassingTraces:
        traces = self.traces.get(definition, [])
        index = self._passing_traces.get(definition)
        if index is None or index.trace_count != len(traces):
            index = _index_passing(len(traces), counting_traces(self, definition))
            self._passing_traces[definition] = index
        return index

    def _results_of(self, definition: str, allow_flags: frozenset[str]) -> Mapping[str, _Results]:
        traces = self.traces.get(definition, [])
        count, results = self._results.get((definition, allow_flags), (-1, {}))
        if count != len(traces):
            results = _results_by_solution(counting_traces(self, definition), allow_flags)
            self._results[definition, allow_flags] = len(traces), results
        return results


def _in_scope(rankings: Rankings, op_type: str | None, definition_name: str | None) -> list[str]:
    if op_type is not None and definition_name is not None:
        raise ValueError("give op_type or definition_name, not both")
    if definition_name is not None:
        return [rankings.get_definition(definition_name).name]
    names = list(rankings.definitions)
    return names if op_type is None else [n for n in names if rankings.definitions[n].op_type == op_type]


def _baseline(definition: str, author: str, found: list[str]) -> str:
    """The baseline author's only solution of a definition."""
    if len(found) != 1:
        count = f"{len(found)} solutions ({', '.join(found)})" if found else "no solution"
        raise ScoringError(definition, f"the baseline author {author!r} has {count}, wanted exactly one")
    return found[0]


def _index_passing(trace_count: int, traces: list[Trace]) -> _PassingTraces:
    candidates = [candidate for trace in traces if (candidate := _candidate(trace))]
    by_speedup: dict[AxesKey | None, list[_Candidate]] = {None: []}
    for candidate in sorted(candidates, key=_speedup, reverse=True):
        by_speedup[None].append(candidate)
        by_speedup.setdefault(_axes_key(candidate[2].workload.axes), []).append(candidate)
    return _PassingTraces(trace_count, candidates, by_speedup)


def _candidate(trace: Trace) -> _Candidate | None:
    evaluation = trace.evaluation
    if evaluation is None or evaluation.performance is None or evaluation.correctness is None:
        return None
    correctness = evaluation.correctness
    return correctness.max_absolute_error, correctness.max_relative_error, trace, evaluation.is_ranked()


def _is_ranked(trace: Trace, allow_flags: Collection[str]) -> bool:
    return trace.evaluation is not None and trace.evaluation.is_ranked(allow_flags)


def _speedup(candidate: _Candidate) -> float:
    performance = candidate[2].evaluation and candidate[2].evaluation.performance
    speedup = performance.speedup_factor if performance else math.nan
    return -1.0 if math.isnan(speedup) else speedup  # last


def _axes_key(axes: Mapping[str, int]) -> AxesKey:
    return tuple(sorted(axes.items()))


def _results_by_solution(traces: list[Trace], allow_flags: frozenset[str]) -> dict[str, _Results]:
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


def _mean(scores: Iterable[SpeedupMetrics]) -> SpeedupMetrics | None:
    """The mean of scores of several definitions, or None if there are none."""
    kept = list(scores)
    if not kept:
        return None
    mean = math.fsum(score.avg_speedup for score in kept) / len(kept)
    return SpeedupMetrics(mean, sum(score.workload_count for score in kept))


def _valid(latency: float, definition: str, solution: str) -> float:
    if not 0 < latency < math.inf:
        problem = f"a passing trace of {solution!r} has the latency {latency} ms, which is not a positive number"
        raise ScoringError(definition, problem)
    return latency
