"""Timing logic under a clock that moves only when a call says so."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
from fib_bench.worker.stopwatch import MIN_SAMPLES, time_calls


@attrs.define
class FakeClock:
    """A clock, and calls that take as long as they are told."""

    now_ns: int = 0
    made: list[str] = attrs.field(factory=list)

    def call(self, name: str, *durations_ns: int) -> Callable[[], str]:
        """A call that takes these durations one after the other; the last one stays."""
        left = list(durations_ns)

        def run() -> str:
            self.now_ns += left.pop(0) if len(left) > 1 else left[0]
            self.made.append(name)
            return f"{name}{len(self.made)}"

        return run

    def time(self, *calls: Callable[[], str], **fields: float) -> tuple[list[float], int, list[str]]:
        settings = {"warmup_runs": 0, "samples": 5, "max_seconds": 1.0, **fields}
        return time_calls(calls, clock_ns=lambda: self.now_ns, **settings)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_long_call_is_timed_singly(clock: FakeClock) -> None:
    samples, batch, _ = clock.time(clock.call("a", 1_000_000))
    assert (samples, batch) == ([1_000_000.0] * 5, 1)


def test_short_calls_are_timed_in_batches(clock: FakeClock) -> None:
    samples, batch, _ = clock.time(clock.call("a", 500))
    assert (samples, batch) == ([500.0] * 5, 100)


def test_a_call_that_takes_no_measurable_time_gets_the_largest_batch(clock: FakeClock) -> None:
    assert clock.time(clock.call("a", 0))[1] == 10_000


def test_samples_rotate_among_the_calls(clock: FakeClock) -> None:
    clock.time(clock.call("a", 100_000), clock.call("b", 100_000), samples=4)
    assert clock.made == ["a", "b", "a", "b", "a", "b"]


def test_the_last_result_of_each_call_is_returned(clock: FakeClock) -> None:
    _, _, results = clock.time(clock.call("a", 100_000), clock.call("b", 100_000), samples=3)
    assert results == ["a5", "b4"]


def test_each_call_is_made_even_if_there_are_fewer_samples(clock: FakeClock) -> None:
    calls = [clock.call(name, 100_000) for name in "abcd"]
    _, _, results = clock.time(*calls, samples=1)
    assert [result[0] for result in results] == list("abcd")


def test_warm_up_calls_are_not_among_the_samples(clock: FakeClock) -> None:
    samples, _, _ = clock.time(clock.call("a", *[9_000_000] * 10, 100_000), warmup_runs=10)
    assert samples == [100_000.0] * 5


def test_the_cap_ends_the_sampling(clock: FakeClock) -> None:
    samples, _, _ = clock.time(clock.call("a", 200_000_000), samples=50)
    assert len(samples) == 4


def test_a_slow_call_gets_the_least_number_of_samples_all_the_same(clock: FakeClock) -> None:
    samples, _, _ = clock.time(clock.call("a", 60_000_000_000), samples=50, warmup_runs=10)
    assert len(samples) == MIN_SAMPLES
    assert len(clock.made) == MIN_SAMPLES + 1


def test_a_slow_warm_up_takes_a_quarter_of_the_cap_and_no_sample_away(clock: FakeClock) -> None:
    call = clock.call("a", *[100_000_000] * 3, 1_000_000)
    samples, _, _ = clock.time(call, warmup_runs=1000, samples=50)
    assert len(samples) == 50


def test_the_batch_follows_the_last_warm_up_call_not_the_first(clock: FakeClock) -> None:
    """The first call may compile."""
    assert clock.time(clock.call("a", 500_000_000, 500), warmup_runs=3, max_seconds=10.0)[1] == 100
