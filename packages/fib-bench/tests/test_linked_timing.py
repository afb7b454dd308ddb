"""Tests of the published latency of linked passes, from two clocks."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from attrs import evolve
from fib_bench.judge.known_calls import EmptyCalls
from fib_bench.judge.linked_timing import LinkedTimer, Reading
from fib_bench.judge.rpc import Rejected
from fib_bench.judge.verification import Verifier
from fib_bench.timing import StopRule
from fib_bench.worker.outside_checks import ThreadActivity
from fib_schema import EvaluationStatus

PASS_OVERHEAD_NS, SPAN_OVERHEAD_NS = 40_000.0, 1_000.0


KNOWN = SimpleNamespace(empty=EmptyCalls(flush_ns=30_000, gap_ns=SPAN_OVERHEAD_NS, error_ns=10.0))


def timer_of(*latencies_ns: tuple[float, float], is_trusted: bool = False) -> LinkedTimer:
    """A timer whose passes took so long by the judge's clock and by the device's."""
    function = SimpleNamespace(context=SimpleNamespace(watch=None, device="cuda:0"))
    timer = LinkedTimer(function, Verifier(function), KNOWN, is_trusted=is_trusted)  # type: ignore[arg-type]
    timer._calls = 30
    timer._readings = [
        Reading(bound + PASS_OVERHEAD_NS, claim + SPAN_OVERHEAD_NS, PASS_OVERHEAD_NS) for bound, claim in latencies_ns
    ]
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

    def test_it_is_the_claim_of_a_trusted_function(self) -> None:
        timer = timer_of(*[(12_900.0, 7_300.0)] * 8, is_trusted=True)
        assert timer.measurement().latency_ms == pytest.approx(0.0073)

    def test_it_is_the_bound_of_a_trusted_function_beside_a_bound(self) -> None:
        trusted = timer_of(*[(12_900.0, 7_300.0)] * 8, is_trusted=True)
        assert trusted.measurement(timer_of(*[(10_000.0, 10_000.0)] * 8)).latency_ms == pytest.approx(0.0073)
        forged = timer_of(*[(12_900.0, 2_000.0)] * 8)
        assert trusted.measurement(forged).latency_ms == pytest.approx(forged.measurement().latency_ms)

    def test_a_clock_that_changes_between_passes_changes_both_passes_of_a_pair(self) -> None:
        timer = timer_of(*[(10_020.0, 10_000.0)] * 4)
        slow = [evolve(r, pass_ns=r.pass_ns + 8_000.0, overhead_ns=r.overhead_ns + 8_000.0) for r in timer._readings]
        timer._readings += slow
        assert timer.to_extra()["bound_ms"] == pytest.approx(0.01002)
        assert timer.measurement().latency_ms == pytest.approx(0.010)

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


class TestEnough:
    RULE = StopRule(iterations=6, max_iterations=60, confidence=0.005, max_seconds=1.0, busy_seconds=1.0)

    def test_six_passes_that_agree_are_enough(self) -> None:
        assert not timer_of(*[(10_000.0, 10_000.0)] * 5).is_done(self.RULE)
        assert timer_of(*[(10_000.0, 10_000.0)] * 6).is_done(self.RULE)

    @pytest.mark.parametrize(("calls", "passes"), [(10, 6), (6, 10), (2, 12)])
    def test_passes_of_few_calls_are_more(self, calls: int, passes: int) -> None:
        for count in (passes - 1, passes):
            timer = timer_of(*[(10_000.0, 10_000.0)] * count)
            timer._calls = calls
            assert timer.is_done(self.RULE) == (count == passes)

    def test_a_bound_that_is_not_precise_is_measured_again(self) -> None:
        timer = timer_of(*[(10_000.0, 10_000.0), (10_900.0, 10_000.0)] * 6)
        timer._busy_seconds = 1.0
        assert not timer.is_done(self.RULE)
        timer = timer_of(*[(10_000.0, 10_000.0), (10_100.0, 10_000.0)] * 6)
        timer._busy_seconds = 1.0
        assert timer.is_done(self.RULE)

    def test_the_bound_of_a_trusted_function_need_not_be_precise(self) -> None:
        timer = timer_of(*[(10_000.0, 10_000.0), (10_900.0, 10_000.0)] * 6, is_trusted=True)
        assert timer.is_done(self.RULE)

    def test_claims_that_jump_between_two_values_need_more(self) -> None:
        latencies = [(10_000.0, 10_000.0), (10_250.0, 10_250.0)] * 4
        assert not timer_of(*latencies).is_done(self.RULE)


class TestInterruption:
    def test_a_pass_that_another_process_interrupted_does_not_count(self) -> None:
        timer = timer_of(*[(10_000.0, 10_000.0)] * 6, (60_000.0, 10_000.0))
        assert len(timer._quiet_readings()) == 6
        assert timer.to_extra()["interrupted_passes"] == 1

    def test_a_known_pass_that_another_process_interrupted_does_not_count(self) -> None:
        timer = timer_of(*[(10_000.0, 10_000.0)] * 7)
        timer._readings[3] = evolve(timer._readings[3], overhead_ns=PASS_OVERHEAD_NS + 50_000.0)
        assert len(timer._quiet_readings()) == 6

    def test_passes_whose_calls_take_longer_count(self) -> None:
        timer = timer_of(*[(10_000.0, 10_000.0)] * 6, (60_000.0, 60_000.0))
        assert len(timer._quiet_readings()) == 7

    def test_six_quiet_ones_count_beside_many_interrupted_ones(self) -> None:
        timer = timer_of(*[(10_000.0, 10_000.0)] * 6, *[(60_000.0, 10_000.0)] * 20)
        assert len(timer._quiet_readings()) == 6

    def test_all_count_if_most_were_interrupted(self) -> None:
        timer = timer_of(*[(10_000.0, 10_000.0)] * 3, *[(60_000.0, 10_000.0)] * 5)
        assert len(timer._quiet_readings()) == 8


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
