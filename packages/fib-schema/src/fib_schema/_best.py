"""The passing traces of each definition, indexed by speedup."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import attrs

from .trace import Trace

AxesKey = tuple[tuple[str, int], ...]
_Candidate = tuple[float, float, Trace, bool]
"""Absolute error, relative error, trace, whether it is ranked in any case: a loop over attributes takes three times
as long."""


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
        allow_flags: Collection[str],
    ) -> Trace | None:
        """The fastest ranked trace within the bounds, or None."""
        key = None if axes is None else _axes_key(axes)
        for absolute, relative, trace, is_ranked in self._index(traces, definition).by_speedup.get(key, ()):
            if (
                absolute <= max_abs_error
                and relative <= max_rel_error
                and (is_ranked or _is_ranked(trace, allow_flags))
            ):
                return trace
        return None

    def within(self, traces: Mapping[str, list[Trace]], definition: str, atol: float, rtol: float) -> list[Trace]:
        """Every trace within the bounds, in the order that they were made."""
        candidates = self._index(traces, definition).candidates
        return [trace for absolute, relative, trace, _ in candidates if absolute <= atol and relative <= rtol]

    def _index(self, traces: Mapping[str, list[Trace]], definition: str) -> _Index:
        group = traces.get(definition, [])
        index = self._indexes.get(definition)
        if index is None or index.trace_count != len(group):
            index = self._indexes[definition] = _make_index(group)
        return index


def _make_index(traces: list[Trace]) -> _Index:
    candidates = [candidate for trace in traces if (candidate := _candidate(trace))]
    by_speedup: dict[AxesKey | None, list[_Candidate]] = {None: []}
    for candidate in sorted(candidates, key=_speedup, reverse=True):
        by_speedup[None].append(candidate)
        by_speedup.setdefault(_axes_key(candidate[2].workload.axes), []).append(candidate)
    return _Index(len(traces), candidates, by_speedup)


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
