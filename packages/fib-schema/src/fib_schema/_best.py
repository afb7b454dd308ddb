"""The passing traces of each definition, indexed by speedup."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from .trace import Trace

AxesKey = tuple[tuple[str, int], ...]


@attrs.frozen
class _Candidate:
    speedup: float
    absolute_error: float
    relative_error: float
    trace: Trace


@attrs.frozen
class _Index:
    trace_count: int
    candidates: list[_Candidate]
    """In the order that the traces were made."""
    by_speedup: dict[AxesKey | None, list[_Candidate]]
    """The fastest first; None holds those of all axes."""


class BestTraces:
    """Answers about passing traces; an index is made at the first question about a definition."""

    def __init__(self) -> None:
        self._indexes: dict[str, _Index] = {}

    def best(
        self,
        traces: Mapping[str, list[Trace]],
        definition: str,
        axes: Mapping[str, int] | None,
        max_abs_error: float,
        max_rel_error: float,
    ) -> Trace | None:
        """The fastest trace within the bounds, or None."""
        key = None if axes is None else _axes_key(axes)
        for candidate in self._index(traces, definition).by_speedup.get(key, ()):
            if _is_within(candidate, max_abs_error, max_rel_error):
                return candidate.trace
        return None

    def within(
        self, traces: Mapping[str, list[Trace]], definition: str, atol: float, rtol: float
    ) -> list[Trace]:
        """Every trace within the bounds, in the order that they were made."""
        candidates = self._index(traces, definition).candidates
        return [c.trace for c in candidates if _is_within(c, atol, rtol)]

    def _index(self, traces: Mapping[str, list[Trace]], definition: str) -> _Index:
        group = traces.get(definition, [])
        index = self._indexes.get(definition)
        if index is None or index.trace_count != len(group):
            index = self._indexes[definition] = _make_index(group)
        return index


def _make_index(traces: list[Trace]) -> _Index:
    candidates = [candidate for trace in traces if (candidate := _candidate(trace))]
    by_speedup: dict[AxesKey | None, list[_Candidate]] = {None: []}
    for candidate in sorted(candidates, key=lambda c: c.speedup, reverse=True):
        by_speedup[None].append(candidate)
        key = _axes_key(candidate.trace.workload.axes)
        by_speedup.setdefault(key, []).append(candidate)
    return _Index(len(traces), candidates, by_speedup)


def _candidate(trace: Trace) -> _Candidate | None:
    evaluation = trace.evaluation
    if evaluation is None or evaluation.performance is None or evaluation.correctness is None:
        return None
    speedup = evaluation.performance.speedup_factor
    correctness = evaluation.correctness
    return _Candidate(
        speedup if speedup == speedup else -1.0,  # NaN sorts last
        correctness.max_absolute_error,
        correctness.max_relative_error,
        trace,
    )


def _is_within(candidate: _Candidate, max_abs_error: float, max_rel_error: float) -> bool:
    return candidate.absolute_error <= max_abs_error and candidate.relative_error <= max_rel_error


def _axes_key(axes: Mapping[str, int]) -> AxesKey:
    return tuple(sorted(axes.items()))
