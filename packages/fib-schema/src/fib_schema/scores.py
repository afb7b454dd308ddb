"""Best traces, and scores of solutions and authors: mean speedups over a baseline author's solution.

Source: the documented scoring rules of the public flashinfer-trace leaderboard.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping

import attrs

from .definition import Definition
from .errors import FibError
from .trace import UNRANKED_FLAGS, Performance, Trace
from .trace_facts import counting_traces, disqualifying_flags, speedup_of

AxesKey = tuple[tuple[str, int], ...]
Passing = tuple[float, float, Trace]
"""Absolute error, relative error, and trace: a loop over attributes takes three times as long."""


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


class Scores(ABC):
    """Queries about the evaluated traces of a set; a base class of `TraceSet`, which stores them.

    Evaluations of another layout than that of their workload do not count, see `trace_facts.counting_traces`.
    """

    def __init__(self) -> None:
        self._fastest: dict[str, tuple[int, dict[AxesKey | None, list[Passing]]]] = {}

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
        passing = _passing(counting_traces(self, def_name))
        return [trace for absolute, relative, trace in passing if absolute <= atol and relative <= rtol]

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
        for absolute, relative, trace in self._by_speedup(def_name).get(None if axes is None else _axes_key(axes), ()):
            if absolute <= max_abs_error and relative <= max_rel_error and _is_ranked(trace, allow_flags):
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
        return None if owner is None else self._scores(owner[0], baseline_author, allow_flags).get(solution_name)

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
        scope = [name for name in self._in_scope(op_type, definition_name) if self._solutions_by(name, author)]
        return dict(self._ranking(scope, baseline_author, allow_flags)).get(author)

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
        scope = [name for name in self._in_scope(op_type, definition_name) if self.solution_names(name)]
        return self._ranking(scope, baseline_author, allow_flags)

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
        scope = self._in_scope(op_type, definition_name)
        passed = [trace.is_successful() for name in scope for trace in self.traces.get(name, [])]
        scored = [name for name in scope if self.solution_names(name)]
        ranked = [name for name in scored if len(self._solutions_by(name, baseline_author)) == 1]
        return TraceSetSummary(
            total=len(passed),
            passed=sum(passed),
            failed=len(passed) - sum(passed),
            rankings=tuple(self._ranking(ranked, baseline_author, allow_flags)),
            unranked=tuple(name for name in scored if name not in ranked),
        )

    def _in_scope(self, op_type: str | None, definition_name: str | None) -> list[str]:
        if op_type is not None and definition_name is not None:
            raise ValueError("give op_type or definition_name, not both")
        if definition_name is not None:
            return [self.get_definition(definition_name).name]
        return [name for name, found in self.definitions.items() if op_type in (None, found.op_type)]

    def _ranking(
        self, scope: Iterable[str], baseline_author: str, allow_flags: Collection[str]
    ) -> list[tuple[str, SpeedupMetrics]]:
        """The mean of the best score of each author over definitions, the best first."""
        best: dict[str, dict[str, SpeedupMetrics]] = {}
        for definition in scope:
            for name, score in self._scores(definition, baseline_author, allow_flags).items():
                of_author = best.setdefault((self._owner(name) or ("", ""))[1], {})
                if definition not in of_author or score.avg_speedup > of_author[definition].avg_speedup:
                    of_author[definition] = score
        means = [(author, _mean(scores.values())) for author, scores in best.items()]
        return sorted(means, key=lambda item: (-item[1].avg_speedup, item[0]))

    def _scores(self, definition: str, baseline_author: str, allow_flags: Collection[str]) -> dict[str, SpeedupMetrics]:
        """The scores of the solutions of a definition that have one."""
        baseline = self._baseline(definition, baseline_author)
        latencies, failed = _latencies(counting_traces(self, definition), allow_flags)
        base = latencies.get(baseline, {})
        scores = {}
        for name in self.solution_names(definition):
            own = latencies.get(name, {})
            shared = own.keys() & base.keys()
            if name == baseline or not (shared or name in failed):
                continue
            ratios = [0.0] if name in failed else [
                _valid(base[uuid], definition, baseline) / _valid(own[uuid], definition, name) for uuid in shared
            ]  # fmt: skip
            scores[name] = SpeedupMetrics(sum(ratios) / len(ratios), len(shared))
        return scores

    def _baseline(self, definition: str, author: str) -> str:
        """The baseline author's only solution of a definition."""
        found = self._solutions_by(definition, author)
        if len(found) != 1:
            count = f"{len(found)} solutions ({', '.join(found)})" if found else "no solution"
            raise ScoringError(definition, f"the baseline author {author!r} has {count}, wanted exactly one")
        return found[0]

    def _solutions_by(self, definition: str, author: str) -> list[str]:
        return [name for name in self.solution_names(definition) if self._owner(name) == (definition, author)]

    def _by_speedup(self, definition: str) -> dict[AxesKey | None, list[Passing]]:
        """The passing traces by axes, the fastest first; None holds those of all axes."""
        total = len(self.traces.get(definition, []))
        count, found = self._fastest.get(definition, (-1, {}))
        if count != total:
            found = {None: []}
            passing = _passing(counting_traces(self, definition))
            for candidate in sorted(passing, key=lambda one: speedup_of(_performance(one[2])) or -1.0, reverse=True):
                found[None].append(candidate)
                found.setdefault(_axes_key(candidate[2].workload.axes), []).append(candidate)
            self._fastest[definition] = total, found
        return found


def _passing(traces: Iterable[Trace]) -> Iterator[Passing]:
    for trace in traces:
        evaluation = trace.evaluation
        if evaluation is not None and evaluation.performance is not None and evaluation.correctness is not None:
            yield evaluation.correctness.max_absolute_error, evaluation.correctness.max_relative_error, trace


def _performance(trace: Trace) -> Performance:
    assert trace.evaluation is not None
    assert trace.evaluation.performance is not None
    return trace.evaluation.performance


def _is_ranked(trace: Trace, allow_flags: Collection[str]) -> bool:
    assert trace.evaluation is not None
    return not disqualifying_flags(trace.evaluation, allow_flags, among=UNRANKED_FLAGS)


def _axes_key(axes: Mapping[str, int]) -> AxesKey:
    return tuple(sorted(axes.items()))


def _latencies(traces: Iterable[Trace], allow_flags: Collection[str]) -> tuple[dict[str, dict[str, float]], set[str]]:
    """The lowest latency of a passing trace by solution and workload, and the solutions with a failed trace."""
    latencies: dict[str, dict[str, float]] = {}
    failed: set[str] = set()
    for trace in traces:
        if trace.evaluation is None or trace.solution is None or not _is_ranked(trace, allow_flags):
            continue
        if trace.evaluation.performance is None:
            failed.add(trace.solution)
            continue
        uuid, latency = trace.workload.uuid, trace.evaluation.performance.latency_ms
        of_solution = latencies.setdefault(trace.solution, {})
        if uuid not in of_solution or latency < of_solution[uuid]:
            of_solution[uuid] = latency
    return latencies, failed


def _mean(scores: Collection[SpeedupMetrics]) -> SpeedupMetrics:
    """The mean of scores of several definitions."""
    mean = math.fsum(score.avg_speedup for score in scores) / len(scores)
    return SpeedupMetrics(mean, sum(score.workload_count for score in scores))


def _valid(latency: float, definition: str, solution: str) -> float:
    if not 0 < latency < math.inf:
        problem = f"a passing trace of {solution!r} has the latency {latency} ms, which is not a positive number"
        raise ScoringError(definition, problem)
    return latency
