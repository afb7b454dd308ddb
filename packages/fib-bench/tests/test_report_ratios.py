"""Tests of ratios of latencies: numbers with intervals, and the marks noise and wide beside them."""

import math

import attrs
import pytest
from fib_bench.report.ratios import (
    UNKNOWN,
    Outcome,
    Ratio,
    baseline_speedup_of,
    format_ratio,
    latency_with_bounds,
    mean_of,
    ratio_of,
    ratio_with_interval,
    speedup_of,
    timed_by,
)
from fib_schema import Performance
from fib_schema.trace_facts import Timing
from hypothesis import given
from hypothesis import strategies as st

LATENCIES = st.floats(1e-3, 1e3)


def performance(interval=None, reference=None, **reference_fields):
    """A solution that takes 1 ms and a reference that takes 2 ms."""
    timing = {} if interval is None else {"interval_ms": interval}
    given_reference = reference_fields if reference is None else {"interval_ms": reference} | reference_fields
    return Performance(1.0, 2.0, 2.0, {"timing": timing, "reference_timing": given_reference})


@pytest.mark.parametrize(
    ("ratio", "outcome", "text"),
    [
        (Ratio(2.0), Outcome.NUMBER, "2.00x"),
        (Ratio(2.0, (1.9, 2.1)), Outcome.NUMBER, "2.0x ± 0.1"),
        (Ratio(1.01, (0.98, 1.04)), Outcome.NOISE, "1.01x (0.98 .. 1.04) noise"),
        (Ratio(1.0, (1.0, 1.0)), Outcome.NOISE, "1.00x (1 .. 1) noise"),
        (Ratio(1.3, (0.9, 1.9)), Outcome.NOISE, "1.30x (0.9 .. 1.9) noise"),
        (Ratio(1.3, (0.9, 1.9), is_wide=True), Outcome.NOISE, "1.30x (0.9 .. 1.9) noise"),
        (Ratio(2.0, (1.79, 2.21)), Outcome.WIDE, "2.00x (1.79 .. 2.21) wide"),
        (Ratio(2.0, (1.9, 2.1), is_wide=True), Outcome.WIDE, "2.00x (1.9 .. 2.1) wide"),
        (Ratio(2.0, (1.0, math.inf)), Outcome.NOISE, "2.00x (1 .. inf) noise"),
        (Ratio(2.0, (1.1, math.inf)), Outcome.WIDE, "2.00x (1.1 .. inf) wide"),
        (UNKNOWN, Outcome.UNKNOWN, "-"),
    ],
)
def test_a_ratio_is_a_number_and_marked_unless_it_is_precise_and_differs_from_1(ratio, outcome, text):
    assert (ratio.outcome, ratio.text) == (outcome, text)
    assert ratio.to_plain()["value"] == ratio.point
    assert bool(ratio.mark) == (outcome not in (Outcome.NUMBER, Outcome.UNKNOWN))


def test_the_certain_part_of_a_number_counts():
    ratios = [
        Ratio(1.02, (0.99, 1.05)),
        Ratio(1.3, (0.9, 1.9)),
        Ratio(1.3, (1.2, 1.4)),
        Ratio(2.0, (1.5, 2.5)),
        UNKNOWN,
    ]
    assert [ratio.certain_value for ratio in ratios] == [1.0, 0.9, 1.3, 1.5, None]


class TestSpeedup:
    def test_its_interval_follows_from_both_latencies(self):
        assert speedup_of(performance([0.98, 1.02], [1.9, 2.1])).interval == pytest.approx((1.9 / 1.02, 2.1 / 0.98))

    def test_a_wide_interval_of_the_reference_is_enough_to_make_it_wide(self):
        assert speedup_of(performance([0.99, 1.01], [1.5, 3.0])).outcome is Outcome.WIDE
        assert speedup_of(performance([0.99, 1.01], [1.99, 2.01])).text == "2.00x ± 0.04"

    def test_the_uncertainty_of_the_clock_widens_it(self):
        assert speedup_of(performance([0.99, 1.01], [1.99, 2.01], uncertainty_ms=0.5)).outcome is Outcome.WIDE

    def test_latencies_of_different_kinds_have_no_ratio(self):
        extra = {"timing": {"method": "handshake"}, "reference_timing": {"method": "eager"}}
        assert speedup_of(Performance(1.0, 2.0, 2.0, extra)) == UNKNOWN
        assert ratio_of(Timing(1.0, method="handshake"), Timing(2.0, method="eager")) == UNKNOWN
        assert ratio_of(Timing(1.0, method="eager"), Timing(2.0, method="cpu")).text == "0.50x"

    def test_the_range_over_several_processes_takes_precedence(self):
        found = performance([1.0, 1.0], [2.0, 2.0])
        extra = {**found.extra, "reference_timing": {"interval_ms": [2.0, 2.0], "speedup_interval": [0.9, 3.0]}}
        assert speedup_of(attrs.evolve(found, extra=extra)).interval == (0.9, 3.0)

    def test_traces_without_intervals_have_numbers(self):
        assert speedup_of(Performance(1.0, 2.0, 2.0)).text == "2.00x"

    @pytest.mark.parametrize("factor", [math.nan, math.inf, 0.0])
    def test_a_factor_that_is_no_positive_number_is_unknown(self, factor):
        assert speedup_of(Performance(1.0, 2.0, factor)) == UNKNOWN

    def test_over_a_baseline_its_interval_counts(self):
        baseline = {"solution": "lib", "latency_ms": 2.0, "speedup_factor": 2.0, "timing": {"interval_ms": [1.0, 4.0]}}
        assert baseline_speedup_of(Performance(1.0, 2.0, 2.0, {"baseline": baseline})).outcome is Outcome.NOISE
        assert baseline_speedup_of(Performance(1.0, 2.0, 2.0)) == UNKNOWN


@given(LATENCIES, LATENCIES, st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0, 1e-4))
def test_the_interval_contains_the_ratio_and_swapping_inverts_it(one_ms, other_ms, width, other_width, uncertainty_ms):
    one = Timing(one_ms, (one_ms * (1 - width), one_ms * (1 + width)), uncertainty_ms)
    other = Timing(other_ms, (other_ms * (1 - other_width), other_ms * (1 + other_width)))
    ratio, inverse = ratio_of(one, other), ratio_of(other, one)
    assert ratio.point is not None
    low, high = ratio.interval
    assert low <= ratio.point * (1 + 1e-9)
    assert ratio.point <= high * (1 + 1e-9)
    assert inverse.interval[0] == pytest.approx(1 / high)
    assert inverse.interval[1] == pytest.approx(1 / low if low else math.inf)


class TestMean:
    def test_of_points_and_bounds_is_geometric(self):
        mean = mean_of([Ratio(2.0, (1.9, 2.1)), Ratio(8.0, (7.9, 8.1)), UNKNOWN])
        assert mean.point == pytest.approx(4.0)
        assert mean.interval == pytest.approx((math.sqrt(1.9 * 7.9), math.sqrt(2.1 * 8.1)))

    def test_of_nothing_is_unknown(self):
        assert mean_of([]) == mean_of([UNKNOWN]) == UNKNOWN


@pytest.mark.parametrize(
    ("method", "reference", "words"),
    [
        ("handshake", "handshake", ""),
        (None, None, ""),
        ("eager", "eager", "eager"),
        ("cpu", "cpu", "cpu"),
        ("handshake", "eager", "handshake (reference: eager)"),
    ],
)
def test_every_method_but_handshake_is_named_and_kinds_are_never_mixed_silently(method, reference, words):
    extra = {name: {"method": m} for name, m in (("timing", method), ("reference_timing", reference)) if m}
    assert timed_by(Performance(1.0, 1.0, 1.0, extra)) == words


@pytest.mark.parametrize(
    ("ratio", "interval", "text"),
    [
        (6.93, (6.6, 7.3), "6.9x ± 0.4"),
        (2.0, (1.95, 2.05), "2.00x ± 0.05"),
        (0.514, (0.5, 0.53), "0.51x ± 0.02"),
        (0.301, (0.292, 0.3109), "0.30x ± 0.01"),
        (95.2, (91.0, 99.0), "95x ± 5"),
        (950.0, (921.0, 989.0), "950x ± 40"),
        (2.0, (1.9999999, 2.0000001), "2.000x ± 0.001"),
        (2.0, (2.0, 2.0), "2.00x"),
        (2.0, None, "2.00x"),
    ],
)
def test_a_ratio_has_the_digits_that_its_interval_allows(ratio, interval, text):
    assert ratio_with_interval(ratio, interval) == text


@pytest.mark.parametrize(
    ("latency_ms", "bounds_ms", "text"),
    [
        (0.0123, (0.0121, 0.0125), "12.3 us ± 0.2"),
        (0.0123, None, "12.3 us"),
        (1.5, (1.4, 1.6), "1.5 ms ± 0.1"),
        (2500.0, (2499.0, 2502.0), "2.500 s ± 0.002"),
        (0.022, (0.021, 2.0), "22 us (21 us .. 2 ms)"),
    ],
)
def test_a_latency_has_its_interval_in_the_same_unit(latency_ms, bounds_ms, text):
    assert latency_with_bounds(latency_ms, bounds_ms) == text


@pytest.mark.parametrize(("ratio", "text"), [(2.0, "2.00x"), (0.1, "0.10x"), (0.0123, "0.012x"), (0.0, "0x")])
def test_small_speedups_keep_two_digits(ratio, text):
    assert format_ratio(ratio) == text
