import math
import random
import statistics

import pytest
from fib_bench.timing import Measurement, median_interval
from fib_bench.timing.measurement import median_error
from hypothesis import given
from hypothesis import strategies as st


def coverage(count):
    """Probability that the interval holds the true median, from the ranks of its ends and the binomial distribution.

    It lies between the elements of ranks ``low`` and ``high`` if more than ``low`` and at most ``high`` samples
    are below it, each with probability one half.
    """
    low, high = map(int, median_interval(range(count)))
    return sum(math.comb(count, below) for below in range(low + 1, high + 1)) / 2**count


class TestMedianInterval:
    @pytest.mark.parametrize("count", [10, 20, 50, 100, 500, 1000])
    def test_covers_the_median_in_95_of_100_cases_and_not_far_more(self, count):
        assert 0.95 <= coverage(count) <= 0.95 + 0.6 / math.sqrt(count)

    def test_covers_the_median_of_any_number_of_samples_above_five(self):
        """The normal distribution stands for the binomial one, which costs a quarter of a percent here and there."""
        assert min(map(coverage, range(6, 400))) >= 0.9475

    @pytest.mark.parametrize("count", range(1, 6))
    def test_of_few_samples_it_spans_them_all(self, count):
        assert median_interval(range(count)) == (0, count - 1)

    def test_holds_for_samples_of_a_lopsided_distribution(self):
        draw = random.Random(0).expovariate
        hits = 0
        for _ in range(1000):
            low, high = median_interval([draw(1.0) for _ in range(40)])
            hits += low <= math.log(2) <= high
        assert 940 <= hits <= 985

    @given(st.lists(st.floats(1, 1e9), min_size=1, max_size=60), st.randoms(use_true_random=False))
    def test_holds_the_median_and_does_not_depend_on_the_order(self, samples, random):
        low, high = median_interval(samples)
        assert low <= statistics.median(samples) <= high
        assert {low, high} <= set(samples)
        shuffled = samples.copy()
        random.shuffle(shuffled)
        assert median_interval(shuffled) == (low, high)


class TestMedianError:
    def test_is_half_the_interval_of_many_normal_samples(self):
        draw = random.Random(0).gauss
        samples = [draw(100.0, 5.0) for _ in range(5000)]
        low, high = median_interval(samples)
        assert median_error(samples) == pytest.approx((high - low) / 2, rel=0.2)

    @given(st.lists(st.floats(1, 1e9), min_size=1, max_size=60))
    def test_scales_with_the_unit_and_is_zero_for_equal_samples(self, samples):
        assert median_error([8 * sample for sample in samples]) == pytest.approx(8 * median_error(samples))
        assert median_error(samples[:1] * len(samples)) == 0

    def test_one_outlier_changes_nothing(self):
        samples = [float(value) for value in range(40)]
        assert median_error([*samples[:-1], 1e9]) == median_error(samples)


class TestMeasurement:
    def test_everything_is_derived_from_the_samples(self):
        samples = tuple(float(1_000_000 + 10_000 * index) for index in range(100))
        measurement = Measurement(
            samples_ns=samples[::-1], method="handshake", call_ns=5e6, overhead_ns=1234.5, error_ns=150
        )
        assert measurement.latency_ms == 1.495
        assert measurement.interval_ms == (1.39, 1.6)
        assert measurement.spread == pytest.approx(0.5 / 1.495)
        assert measurement.to_extra() == {
            "method": "handshake",
            "samples": 100,
            "interval_ms": [1.39, 1.6],
            "spread": round(0.5 / 1.495, 5),
            "call_ms": 5.0,
            "overhead_us": 1.2345,
            "uncertainty_ms": 0.00015,
            "call_uncertainty_ms": 0.0,
        }

    def test_of_one_sample_interval_and_spread_are_known(self):
        measurement = Measurement(samples_ns=(2e6,), method="cpu", call_ns=2e6)
        assert (measurement.latency_ms, measurement.interval_ms, measurement.spread) == (2.0, (2.0, 2.0), 0.0)
