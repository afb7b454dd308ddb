"""Tests of the published latency of linked passes, from two clocks."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from fib_bench.judge.known_calls import Overhead, Reading
from fib_bench.judge.linked_timing import LinkedTimer
from fib_bench.judge.rpc import Rejected
from fib_bench.judge.verification import Verifier
from fib_bench.worker.outside_checks import ThreadActivity
from fib_schema import EvaluationStatus

PASS_OVERHEAD_NS, SPAN_OVERHEAD_NS = 40_000.0, 1_000.0


class Known:
    """Known calls of a perfect device."""

    calls = 0

    def overhead(self, calls: int) -> Overhead:
        del calls
        return Overhead(Reading(PASS_OVERHEAD_NS, SPAN_OVERHEAD_NS), Reading(50.0, 10.0))


def timer_of(*latencies_ns: tuple[float, float]) -> LinkedTimer:
    """A timer whose passes took so long by the judge's clock and by the device's."""
    function = SimpleNamespace(context=SimpleNamespace(watch=None, device="cuda:0"))
    timer = LinkedTimer(function, Verifier(function), Known())  # type: ignore[arg-type]
    timer._readings = [Reading(bound + PASS_OVERHEAD_NS, claim + SPAN_OVERHEAD_NS) for bound, claim in latencies_ns]
    return timer


class TestPublishedLatency:
    def test_it_is_the_claim_where_the_judges_clock_agrees(self) -> None:
        timer = timer_of(*[(10_020.0, 10_000.0)] * 8)
        assert timer.measurement().latency_ms == pytest.approx(0.010)

    def test_it_is_the_bound_less_its_uncertainty_where_the_claim_is_too_small(self) -> None:
        timer = timer_of(*[(12_900.0, 7_300.0)] * 8)
        assert timer.measurement().latency_ms == pytest.approx(0.0129 - timer.to_extra()["uncertainty_ms"])
        assert timer.to_extra()["claim_ms"] == pytest.approx(0.0073)
        assert timer.to_extra()["bound_ms"] == pytest.approx(0.0129)

    def test_it_does_not_jump_where_the_bound_exceeds_the_claim_by_its_uncertainty(self) -> None:
        excesses = range(0, 200, 10)
        latencies = [timer_of(*[(10_000.0 + excess, 10_000.0)] * 8).measurement().latency_ms for excess in excesses]
        assert all(0 <= after - before <= 10.01e-6 for before, after in itertools.pairwise(latencies))

    def test_a_claim_above_the_bound_stays(self) -> None:
        timer = timer_of(*[(9_000.0, 10_000.0)] * 8)
        assert timer.measurement().latency_ms == pytest.approx(0.010)

    def test_a_noisy_bound_below_zero_is_not_rejected(self) -> None:
        timer = timer_of((-3_000.0, 1_000.0), (4_000.0, 1_000.0), (-2_000.0, 1_000.0), (3_500.0, 1_000.0), (-500, 1e3))
        assert timer.measurement().latency_ms == pytest.approx(0.001)

    def test_a_bound_that_is_too_low_by_a_part_of_a_flush_is_not_rejected(self) -> None:
        timer = timer_of(*[(-3_500.0, 700.0)] * 8)
        assert timer.measurement().latency_ms == pytest.approx(0.0007)

    def test_less_than_nothing_beyond_all_noise_is_a_verdict(self) -> None:
        with pytest.raises(Rejected, match=r"impossible latency: -30\.00"):
            timer_of(*[(-30_000.0, 2_000.0)] * 8).measurement()


class TestDisturbance:
    @pytest.fixture(autouse=True)
    def _multiprocessors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        properties = SimpleNamespace(multi_processor_count=132)
        monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: properties)

    def made(self, *, free: int = 132, ran_ns: int = 0) -> SimpleNamespace:
        activity = ThreadActivity({17: ran_ns} if ran_ns else {}, {}, ())
        return SimpleNamespace(free_multiprocessors=free, activity=activity, taken_ns=2_000_000)

    def test_a_pass_on_a_free_device_counts(self) -> None:
        assert timer_of()._is_undisturbed(self.made())  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("fields", "words"), [({"free": 131}, "another kernel occupied 1 of 132"), ({"ran_ns": 10**6}, "thread 17 ran")]
    )
    def test_a_disturbed_pass_is_discarded_and_only_many_are_a_verdict(
        self, fields: dict[str, int], words: str
    ) -> None:
        timer = timer_of()
        for _ in range(20):
            assert not timer._is_undisturbed(self.made(**fields))  # type: ignore[arg-type]
        with pytest.raises(Rejected, match=words) as caught:
            timer._is_undisturbed(self.made(**fields))  # type: ignore[arg-type]
        assert caught.value.status is EvaluationStatus.REWARD_HACK

    def test_a_driver_thread_that_wakes_up_disturbs_nothing(self) -> None:
        assert timer_of()._is_undisturbed(self.made(ran_ns=20_000))  # type: ignore[arg-type]
