"""Tests of what traces say: layouts that count, the latest trace, timings and flags."""

import attrs
import pytest
from fib_schema import Performance, RandomInput, Trace, TraceSet, Workload, trace_facts
from fib_schema.trace_facts import Baseline, Timing, has_workload_layout

PADDED = {"A": [16, 1]}


def workload(layout=None, uuid="w"):
    extra = None if layout is None else {"layout": layout}
    return Workload({"M": 4, "K": 8}, {"A": RandomInput(), "B": RandomInput()}, uuid, extra)


def measured(trace, layout):
    """The trace with the layout that its evaluation states; None leaves the field out."""
    extra = dict(trace.evaluation.extra or {}) | ({} if layout is None else {"layout": layout})
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
    definition, make_trace, of_workload, of_evaluation, counts
):
    evaluation = measured(make_trace(), of_evaluation).evaluation
    assert has_workload_layout(definition, workload(of_workload), evaluation) is counts


def test_without_the_definition_layouts_are_compared_as_they_are_written(make_trace):
    evaluation = measured(make_trace(), PADDED).evaluation
    assert has_workload_layout(None, workload(PADDED), evaluation)
    assert not has_workload_layout(None, workload(), evaluation)


@pytest.fixture
def trace_set(definition, make_solution, make_trace):
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


def test_the_workload_of_the_set_decides_not_the_copy_in_the_trace(trace_set):
    assert [trace.solution for trace in trace_set.counting_traces("gemm")] == ["slow", "base"]


def test_a_trace_of_another_layout_is_never_the_best(trace_set):
    best = trace_set.get_best_trace("gemm")
    assert best.solution == "slow"
    assert [trace.solution for trace in trace_set.filter_traces("gemm")] == ["slow", "base"]


def performance(**timing):
    return Performance(1.0, 4.0, 4.0, {"timing": timing, "reference_timing": {"interval_ms": [3.0, 5.0]}})


@pytest.mark.parametrize(
    ("timing", "interval", "bounds"),
    [
        ({}, None, None),
        ({"interval_ms": [0.9, 1.2]}, (0.9, 1.2), (0.9, 1.2)),
        ({"interval_ms": [0.9, 1.2], "uncertainty_ms": 0.1}, (0.9, 1.2), (0.81, 1.3)),
        ({"interval_ms": [0.9, 1.2], "uncertainty_ms": 2}, (0.9, 1.2), (0.81 / 2.9, 3.2)),
        ({"uncertainty_ms": 0.25}, None, (0.8, 1.25)),
        ({"interval_ms": [1.1, 1.2]}, None, None),
        ({"interval_ms": [0.9, float("inf")]}, None, None),
        ({"interval_ms": [0.9, True]}, None, None),
        ({"interval_ms": "0.9"}, None, None),
        ({"interval_ms": [0.9, 1.2], "uncertainty_ms": -1}, None, None),
        ({"interval_ms": [0.9, 10**400]}, None, None),
    ],
)
def test_a_timing_has_the_interval_widened_by_the_uncertainty_of_the_clock(timing, interval, bounds):
    found = trace_facts.timing_of(performance(**timing))
    assert found.interval_ms == interval
    assert found.bounds_ms == (None if bounds is None else pytest.approx(bounds))


@pytest.mark.parametrize(
    ("timing", "kind", "call"),
    [
        ({}, None, None),
        ({"call_ms": 2.0}, None, Timing(2.0, method="eager")),
        (
            {"method": "handshake", "call_ms": 2.0, "call_uncertainty_ms": 0.1},
            "device",
            Timing(2.0, uncertainty_ms=0.1, method="eager"),
        ),
        ({"method": "handshake", "call_ms": -1}, "device", None),
        ({"method": "eager", "call_ms": 1.0}, "call", Timing(1.0, method="eager", call_ms=1.0)),
        ({"method": "cpu"}, "call", Timing(1.0, method="cpu")),
        ({"method": "linked", "host_latency_ms": 2.0}, "older", None),
        ({"method": ["handshake"]}, None, None),
    ],
)
def test_a_timing_states_its_kind_and_the_call_latency_by_the_clock_of_the_judge(timing, kind, call):
    found = trace_facts.timing_of(performance(**timing))
    assert (found.kind, found.of_call) == (kind, call)
    assert found.call_ms == (call and timing.get("call_ms"))


def test_device_latencies_come_before_call_latencies(make_trace):
    def timed(method, latency_ms):
        evaluation = make_trace().evaluation
        assert evaluation is not None
        extra = {"timing": {"method": method}}
        evaluation = attrs.evolve(evaluation, performance=Performance(latency_ms, 4.0, 4.0, extra))
        return attrs.evolve(make_trace(), evaluation=evaluation)

    older, eager, device = timed("linked", 1.0), timed("eager", 2.0), timed("handshake", 3.0)
    assert trace_facts.fastest([older, eager, device]) is device
    assert trace_facts.fastest([older, eager]) is eager


def test_the_reference_and_the_baseline_have_timings_of_their_own():
    extra = {"baseline": {"solution": "base", "latency_ms": 2.0, "speedup_factor": 2.0, "timing": {"method": "eager"}}}
    timed = Performance(1.0, 4.0, 4.0, extra)
    assert trace_facts.reference_timing_of(timed) == Timing(4.0)
    assert trace_facts.baseline_of(timed) == Baseline("base", Timing(2.0, method="eager"), 2.0)
    assert trace_facts.speedup_of(timed) == 4.0
    assert trace_facts.baseline_of(Performance(1.0, 4.0, 4.0)) is None
    assert trace_facts.speedup_of(Performance(1.0, 4.0, float("inf"))) is None
    assert trace_facts.timing_of(Performance(float("nan"), 4.0, 4.0)) is None


def test_flags_disqualify_unless_they_are_allowed(make_trace):
    quick, fixed = make_trace(flags=["quick"]), make_trace(flags=["fixed_inputs"])
    assert fixed.evaluation is not None
    assert trace_facts.disqualifying_flags(quick.evaluation) == ("quick",)
    assert trace_facts.disqualifying_flags(quick.evaluation, ["quick"]) == ()
    assert trace_facts.latency_of(quick) is None
    assert trace_facts.latency_of(fixed) == 1.0
    assert trace_facts.latency_of(fixed, among=trace_facts.NOT_ROUTED) is None
    assert trace_facts.latency_of(make_trace(status="TIMEOUT")) is None
    assert trace_facts.shown_latency_of(quick.evaluation) == 1.0
    assert trace_facts.latency_of(make_trace(flags=["interpreted"])) is None


def at(trace, timestamp):
    assert trace.evaluation is not None
    return attrs.evolve(trace, evaluation=attrs.evolve(trace.evaluation, timestamp=timestamp))


def test_the_latest_trace_is_that_of_the_latest_timestamp_then_the_last(make_trace):
    new, old = at(make_trace(latency=1.0), "2026-01-02T00:00:00+02:00"), at(make_trace(latency=2.0), "2026-01-01")
    other, undated = make_trace("other"), at(make_trace(latency=3.0), "yesterday")
    found = trace_facts.latest([undated, new, old, other, at(make_trace(latency=4.0), "2026-01-01T22:00:00Z")])
    assert list(found) == ["cpu"]
    assert found["cpu"]["w0"]["other"] is other
    assert trace_facts.latency_of(found["cpu"]["w0"]["fast"]) == 4.0


def test_a_quick_run_replaces_no_full_run(make_trace):
    full, quick = at(make_trace(), "2026-01-01"), at(make_trace(flags=["quick"]), "2026-01-02")
    for traces in ([full, quick], [quick, full]):
        assert trace_facts.latest(traces)["cpu"]["w0"]["fast"] is full
    assert trace_facts.latest([quick])["cpu"]["w0"]["fast"] is quick


def test_the_fastest_trace_is_the_first_with_the_shortest_latency(make_trace):
    traces = [make_trace("a", latency=2.0), make_trace("b"), make_trace("c"), make_trace("d", latency=0.0)]
    assert trace_facts.fastest(traces) is traces[1]
    assert trace_facts.fastest([make_trace(status="TIMEOUT")]) is None
