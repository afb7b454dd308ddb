"""Tests of timing: stopwatches with a fake clock, and statistics of samples."""

from __future__ import annotations

import gc
import math
import random
import statistics
import sys
from collections.abc import Sequence

import attrs
import pytest
import torch
from fib_bench.timing import Measurement, StopRule, median_interval
from fib_bench.timing.cuda import event_ms, kernels_of
from fib_bench.timing.host import HostStopwatch, TimedCall
from fib_bench.timing.measurement import MIN_SAMPLES, relative_interval
from hypothesis import given
from hypothesis import strategies as st

CPU = torch.device("cpu")


@attrs.define
class FakeClock:
    """A clock, calls that take as long as they are told, and what happened in which order."""

    now_ns: int = 0
    happened: list[str] = attrs.field(factory=list)

    def call(self, name: str, *durations_ns: int) -> TimedCall:
        """A call that takes these durations one after the other; the last one stays."""
        left = list(durations_ns)

        def invoke() -> str:
            self.now_ns += left.pop(0) if len(left) > 1 else left[0]
            self.happened.append(name)
            return f"what {name} gave"

        def collect(result: str) -> None:
            self.now_ns += 1_000_000
            self.happened.append(f"collect {result}")

        def prepare() -> None:
            self.now_ns += 1_000_000
            self.happened.append(f"prepare {name}")

        return TimedCall(invoke, collect, prepare)

    def calls(self, names: str, duration_ns: int) -> list[TimedCall]:
        """A call for each letter."""
        return [self.call(name, duration_ns) for name in names]

    def stopwatch(self, calls: Sequence[TimedCall]) -> HostStopwatch:
        """A stopwatch that reads this clock."""
        return HostStopwatch(calls, clock_ns=lambda: self.now_ns)

    @property
    def made(self) -> str:
        """The letters of the calls made, in their order."""
        return "".join(name for name in self.happened if len(name) == 1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class TestWarmUp:
    def test_rotates_among_the_calls_and_collects_each(self, clock: FakeClock) -> None:
        clock.stopwatch(clock.calls("ab", 100_000)).warm_up(3, 1.0)
        assert clock.happened == [
            "prepare a", "a", "collect what a gave", "prepare b", "b", "collect what b gave",
            "prepare a", "a", "collect what a gave",
        ]  # fmt: skip

    def test_ends_at_the_cap(self, clock: FakeClock) -> None:
        clock.stopwatch(clock.calls("a", 200_000_000)).warm_up(50, 0.5)
        assert clock.made == "aaa"

    @pytest.mark.parametrize("runs", [0, 1, 50])
    def test_makes_one_call_in_any_case(self, clock: FakeClock, runs: int) -> None:
        assert clock.stopwatch(clock.calls("a", 60_000_000_000)).warm_up(runs, 0.1) == 6e10
        assert clock.made == "a"

    def test_believes_the_last_calls_and_not_the_first(self, clock: FakeClock) -> None:
        """The first one may compile; of the last three one may have been disturbed."""
        call = clock.call("a", 900_000_000, 100, 5_000, 4_000, 9_000)
        assert clock.stopwatch([call]).warm_up(5, 10.0) == 4_000


class TestSample:
    def test_calls_are_prepared_and_collected_outside_the_clock(self, clock: FakeClock) -> None:
        assert clock.stopwatch(clock.calls("abc", 10)).sample(2) == [10.0, 10.0]
        assert clock.happened == [
            "prepare a", "a", "collect what a gave", "prepare b", "b", "collect what b gave",
        ]  # fmt: skip

    def test_samples_are_those_of_single_calls(self, clock: FakeClock) -> None:
        stopwatch = clock.stopwatch([clock.call("a", 10), clock.call("b", 70), clock.call("c", 30)])
        assert stopwatch.sample(3) == [10.0, 70.0, 30.0]

    def test_samples_start_with_the_first_call_each_time(self, clock: FakeClock) -> None:
        stopwatch = clock.stopwatch(clock.calls("abc", 10))
        stopwatch.sample(2)
        stopwatch.sample(2)
        assert clock.made == "abab"

    def test_what_would_run_while_results_are_collected_is_ended(self) -> None:
        seen = []

        def invoke() -> None:
            sys.setprofile(lambda *_: None)
            gc.enable()

        def collect(_: object) -> None:
            seen.append((sys.getprofile(), sys.gettrace(), gc.isenabled()))

        before = sys.getprofile(), sys.gettrace()
        try:
            HostStopwatch([TimedCall(invoke, collect)] * 2).sample(2)
        finally:
            sys.setprofile(before[0])
            sys.settrace(before[1])
        assert seen == [(None, None, False)] * 2

    @pytest.mark.parametrize("was_enabled", [True, False])
    def test_the_garbage_collector_is_kept_out_and_put_back(self, was_enabled: bool) -> None:
        seen: list[bool] = []
        stopwatch = HostStopwatch([TimedCall(lambda: seen.append(gc.isenabled()))])
        before = gc.isenabled()
        try:
            gc.enable() if was_enabled else gc.disable()
            stopwatch.sample(1)
            assert gc.isenabled() is was_enabled
        finally:
            gc.enable() if before else gc.disable()
        assert seen == [False]


def coverage(count: int) -> float:
    """Probability that the interval holds the true median, from the ranks of its ends and the binomial distribution.

    It lies between the elements of ranks ``low`` and ``high`` if more than ``low`` and at most ``high`` samples
    are below it, each with probability one half.
    """
    low, high = map(int, median_interval(range(count)))
    return sum(math.comb(count, below) for below in range(low + 1, high + 1)) / 2**count


class TestMedianInterval:
    @pytest.mark.parametrize("count", [10, 20, 50, 100, 500, 1000])
    def test_covers_the_median_in_95_of_100_cases_and_not_far_more(self, count: int) -> None:
        assert 0.95 <= coverage(count) <= 0.95 + 0.6 / math.sqrt(count)

    def test_covers_the_median_of_any_number_of_samples_above_five(self) -> None:
        """The normal distribution stands for the binomial one, which costs a quarter of a percent here and there."""
        assert min(map(coverage, range(6, 400))) >= 0.9475

    @pytest.mark.parametrize("count", range(1, 6))
    def test_of_few_samples_it_spans_them_all(self, count: int) -> None:
        assert median_interval(range(count)) == (0, count - 1)

    def test_holds_for_samples_of_a_lopsided_distribution(self) -> None:
        draw = random.Random(0).expovariate
        hits = 0
        for _ in range(1000):
            low, high = median_interval([draw(1.0) for _ in range(40)])
            hits += low <= math.log(2) <= high
        assert 940 <= hits <= 985

    @given(st.lists(st.floats(1, 1e9), min_size=1, max_size=60), st.randoms(use_true_random=False))
    def test_holds_the_median_and_does_not_depend_on_the_order(
        self, samples: list[float], random: random.Random
    ) -> None:
        low, high = median_interval(samples)
        assert low <= statistics.median(samples) <= high
        assert {low, high} <= set(samples)
        shuffled = samples.copy()
        random.shuffle(shuffled)
        assert median_interval(shuffled) == (low, high)

    @given(st.lists(st.floats(1, 1e9), min_size=1, max_size=60))
    def test_relative_to_the_median_it_does_not_depend_on_the_unit(self, samples: list[float]) -> None:
        low, high = median_interval(samples)
        half = (high - low) / 2 / statistics.median(samples)
        assert relative_interval(samples) == pytest.approx(half)
        assert relative_interval([8 * sample for sample in samples]) == pytest.approx(half)

    def test_a_median_of_nothing_is_known_not_at_all(self) -> None:
        assert relative_interval([0.0, 0.0, 1.0]) == math.inf


class TestMeasurement:
    def test_everything_is_derived_from_the_samples(self) -> None:
        samples = tuple(float(1_000_000 + 10_000 * index) for index in range(100))
        measurement = Measurement(samples_ns=samples[::-1], method="graph", chain=4, host_ns=5e6, overhead_ns=1234.5)
        assert measurement.latency_ms == 1.495
        assert measurement.interval_ms == (1.39, 1.6)
        assert measurement.spread == pytest.approx(0.5 / 1.495)
        assert measurement.to_extra() == {
            "method": "graph",
            "samples": 100,
            "calls_per_sample": 4,
            "interval_ms": [1.39, 1.6],
            "spread": round(0.5 / 1.495, 5),
            "host_latency_ms": 5.0,
            "overhead_us": 1.2345,
        }

    def test_of_one_sample_interval_and_spread_are_known(self) -> None:
        measurement = Measurement(samples_ns=(2e6,), method="host", chain=1, host_ns=2e6)
        assert (measurement.latency_ms, measurement.interval_ms, measurement.spread) == (2.0, (2.0, 2.0), 0.0)


NARROW, WIDE = (100.0, 100.0), (100.0, 200.0)


def alternating(count: int, values: tuple[float, float]) -> list[float]:
    return [values[index % 2] for index in range(count)]


class TestStopRule:
    RULE = StopRule(iterations=20, max_iterations=50, confidence=0.01, max_seconds=1.0, busy_seconds=0.5)

    @pytest.mark.parametrize(
        ("samples", "elapsed", "busy", "is_done"),
        [
            pytest.param(alternating(0, NARROW), 9.0, 9.0, False, id="no-sample"),
            pytest.param(alternating(2, NARROW), 9.0, 9.0, False, id="too-few-even-after-the-cap"),
            pytest.param(alternating(MIN_SAMPLES, NARROW), 1.0, 0.0, True, id="the-least-at-the-cap"),
            pytest.param(alternating(3, NARROW), 0.99, 0.99, False, id="before-the-cap"),
            pytest.param(alternating(19, NARROW), 0.5, 0.5, False, id="narrow-but-too-few"),
            pytest.param(alternating(20, NARROW), 0.0, 0.0, True, id="enough-and-narrow"),
            pytest.param(alternating(20, WIDE), 0.4, 0.4, False, id="enough-but-wide"),
            pytest.param(alternating(20, WIDE), 0.6, 0.5, True, id="wide-and-refined-long-enough"),
            pytest.param(alternating(49, WIDE), 0.9, 0.4, False, id="wide-and-time-left"),
            pytest.param(alternating(50, WIDE), 0.0, 0.0, True, id="the-most"),
            pytest.param(alternating(20, WIDE), 1.0, 0.0, True, id="wide-at-the-cap"),
        ],
    )
    def test_states(self, samples: list[float], elapsed: float, busy: float, is_done: bool) -> None:
        assert self.RULE.is_done(samples, elapsed, busy) is is_done

    @given(st.lists(st.floats(1, 1e6), max_size=60), st.floats(0, 2), st.floats(0, 2))
    def test_what_is_done_stays_done_as_time_passes(self, samples: list[float], elapsed: float, busy: float) -> None:
        if self.RULE.is_done(samples, elapsed, busy):
            assert self.RULE.is_done(samples, elapsed + 1, busy + 1)


def test_on_the_host_there_are_no_kernels_to_list() -> None:
    assert kernels_of(lambda: pytest.fail("was called"), CPU) == ()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_events_time_the_work_of_the_device() -> None:
    device = torch.device("cuda:0")
    x = torch.ones(1 << 26, device=device)
    taken = sorted(event_ms(lambda: x.mul_(1.0), device) for _ in range(9))[4]
    assert 0.05 < taken < 5
