"""Tests of the rule by which an evaluation counts for a workload: it states the same layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from fib_schema import Definition, RandomInput, Solution, Trace, TraceSet, Workload
from fib_schema.measured_layouts import counting_traces, has_workload_layout

MakeTrace = Callable[..., Trace]
PADDED = {"A": [16, 1]}


def workload(layout: Any = None, uuid: str = "w") -> Workload:
    extra = None if layout is None else {"layout": layout}
    return Workload({"M": 4, "K": 8}, {"A": RandomInput(), "B": RandomInput()}, uuid, extra)


def measured(trace: Trace, layout: Any) -> Trace:
    """The trace with the layout that its evaluation states; None leaves the field out."""
    assert trace.evaluation is not None
    extra = {**(trace.evaluation.extra or {}), **({} if layout is None else {"layout": layout})}
    return attrs.evolve(trace, evaluation=attrs.evolve(trace.evaluation, extra=extra))


@pytest.mark.parametrize(
    ("of_workload", "of_evaluation", "counts"),
    [
        (None, None, True),
        (None, PADDED, False),
        (PADDED, None, False),
        (PADDED, PADDED, True),
        (PADDED, {"A": [24, 1]}, False),
        (PADDED, {**PADDED, "B": [16, 1]}, False),
        (PADDED, "contiguous", False),
        ({"A": [8, 1]}, None, True),
        (None, {"A": [8, 1]}, True),
        ({**PADDED, "B": [8, 1]}, PADDED, True),
        ({"C": [16, 1]}, {"C": [16, 1]}, False),
    ],
)
def test_an_evaluation_counts_if_it_states_the_layout_of_the_workload(
    definition: Definition, make_trace: MakeTrace, of_workload: Any, of_evaluation: Any, counts: bool
) -> None:
    evaluation = measured(make_trace(), of_evaluation).evaluation
    assert evaluation is not None
    assert has_workload_layout(definition, workload(of_workload), evaluation) is counts


def test_without_the_definition_layouts_are_compared_as_they_are_written(make_trace: MakeTrace) -> None:
    evaluation = measured(make_trace(), PADDED).evaluation
    assert evaluation is not None
    assert has_workload_layout(None, workload(PADDED), evaluation)
    assert not has_workload_layout(None, workload(), evaluation)


@pytest.fixture
def trace_set(definition: Definition, make_solution: Callable[..., Solution], make_trace: MakeTrace) -> TraceSet:
    """A padded workload, measured by ``fast`` without its layout, and by ``slow`` and ``base`` with it."""
    traces = [
        measured(attrs.evolve(make_trace("fast", latency=0.1), workload=workload()), None),
        measured(attrs.evolve(make_trace("lost", latency=0.1), workload=workload(PADDED)), None),
        measured(attrs.evolve(make_trace("slow", latency=2.0), workload=workload(PADDED)), PADDED),
        measured(attrs.evolve(make_trace("base", latency=4.0), workload=workload(PADDED)), PADDED),
    ]
    return TraceSet(
        definitions={"gemm": definition},
        solutions={"gemm": [make_solution(name, name) for name in ("fast", "lost", "slow", "base")]},
        workloads={"gemm": [Trace("gemm", workload(PADDED))]},
        traces={"gemm": traces},
    )


def test_the_workload_of_the_set_decides_not_the_copy_in_the_trace(trace_set: TraceSet) -> None:
    assert [trace.solution for trace in counting_traces(trace_set, "gemm")] == ["slow", "base"]


def test_a_trace_of_another_layout_is_never_the_best(trace_set: TraceSet) -> None:
    best = trace_set.get_best_trace("gemm")
    assert best is not None
    assert best.solution == "slow"
    assert [trace.solution for trace in trace_set.filter_traces("gemm")] == ["slow", "base"]


def test_authors_are_ranked_by_traces_of_the_layout_of_the_workload(trace_set: TraceSet) -> None:
    ranking = trace_set.rank_authors("base")
    assert [(author, score.avg_speedup) for author, score in ranking] == [("slow", 2.0)]
