"""Tests of the timer on a device that is not there: latencies of both kinds, and passes that something disturbed."""

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace

import attrs
import pytest
import torch
from fib_bench import ResolvedEvalConfig
from fib_bench.judge import timer as timer_module
from fib_bench.judge.passes import Launch, Order, TimedPass, is_paired, reported_lines
from fib_bench.judge.timer import Timer
from fib_bench.timing.handshake import native
from fib_bench.transport.messages import Warm
from fib_bench.worker.client import NotCapturable, Rejected, WorkerLost
from fib_schema import EvaluationStatus

CALLS = 16
COLD, FRESH, EAGER, EAGER_FRESH = ((launch, order) for launch in Launch for order in Order)
CONFIG = ResolvedEvalConfig(iterations=48, max_iterations=320, confidence=0.01, measure_seconds=1.0)


@attrs.define
class Device:
    """Passes that take as many nanoseconds as they are told."""

    latencies: Mapping[tuple[Launch, Order], float] = attrs.field(
        factory=lambda: {COLD: 10_000.0, FRESH: 9_500.0, EAGER: 50_000.0, EAGER_FRESH: 60_000.0}
    )
    nothing: float = 1000.0
    calls: int = CALLS
    first: float = 0.0
    """Nanoseconds that the first call of a pass takes more."""
    least: float = 900.0
    """Of the least call, beyond nothing."""
    scatter: float = 10.0
    size_bytes: int = 0
    output_bytes: int = 64
    digests: tuple[int, int] = (0, 0)
    """Nanoseconds of digests after calls, and without calls."""
    end_ns: int = 1000
    ran_seconds: float = 0.0
    disturbed: list[int] = attrs.field(factory=list)
    """Ends of the next passes of calls."""
    made: int = 0
    """Passes so far."""
    composed: list[tuple[int, Order]] = attrs.field(factory=list)
    nodes: int = 3
    reads: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()

    def compose(self, kind, order):
        self.composed.append((kind, order))

    def redraw(self):
        """All structure stays."""

    def run(self, kind, order, launch, *, is_watched, is_new=True):
        self.made += 1
        beyond = self.latencies[launch, order] if kind == native.SOLUTION else self.least * (kind == native.LEAST)
        taken = self.nothing + beyond
        times = [int(taken + self.scatter * (-1) ** call) for call in range(CALLS)]
        times[0] += int(self.first) * (kind == native.SOLUTION)
        is_disturbed = kind == native.SOLUTION and launch is Launch.DEVICE and self.disturbed
        end_ns = self.disturbed.pop(0) if is_disturbed else self.end_ns if launch is Launch.DEVICE else 0
        ran_seconds = self.ran_seconds if is_watched and launch is Launch.DEVICE else None
        pairs = CALLS * is_paired(kind, order, launch)
        after, without = ([1 << native.SPAN_BITS | ns // 16] for ns in self.digests)
        digests = (after if kind == native.SOLUTION else without) * CALLS
        return TimedPass(
            times, [(1, 2, 1)] * CALLS, digests, [0] * CALLS, None, end_ns, ran_seconds,
            [int(self.nothing)] * pairs, without * pairs,
        )  # fmt: skip


@pytest.fixture
def make_timer(monkeypatch):
    finished = []
    verification = SimpleNamespace(add=lambda *_: None, to_extra=dict, finish=finished.append)
    monkeypatch.setattr(timer_module, "Verification", lambda *_, **__: verification)

    def make(device, *, is_cuda=True, warm_ns=5.0, watch=None, structural_outputs=(), has_setup=False, **options):
        monkeypatch.setattr(timer_module, "Passes", lambda *_: device)
        cache = SimpleNamespace(L2_cache_size=50 << 20)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: cache)
        device_context = SimpleNamespace(is_cuda=is_cuda, seconds=time.monotonic, watch=watch, device="cuda:0")
        function = SimpleNamespace(
            context=device_context, keeps_integers=False, load_all=lambda _: None, ask=lambda *_, **__: Warm(warm_ns),
            layout=SimpleNamespace(size_bytes=device.size_bytes), has_setup=has_setup, call_each=None,
        )  # fmt: skip
        first = SimpleNamespace(inputs=torch.zeros(4, dtype=torch.uint8))
        prepared = SimpleNamespace(
            recipes={}, redraw=None, moved={}, trials=[first], structural_outputs=structural_outputs
        )
        options.setdefault("is_compared", not options.get("is_trusted"))
        return Timer(function, prepared, CONFIG, **options)

    make.finished = finished
    return make


def sampled(timer, passes=4):
    for _ in range(passes):
        timer.sample()
    return timer


def test_both_latencies_are_what_calls_take_beyond_passes_without_calls(make_timer):
    timer = sampled(make_timer(Device()))
    found = timer.measurement()
    assert found.method == "handshake"
    assert found.latency_ms == pytest.approx(0.01, rel=1e-3)
    assert found.call_ns == pytest.approx(50_000, rel=1e-3)
    assert found.overhead_ns == pytest.approx(1000, abs=20)
    assert 100 < found.error_ns < 1000
    extra = timer.to_extra()
    assert extra["orders_ms"] == pytest.approx({"cold": 0.01, "fresh": 0.0095}, rel=1e-2)
    assert "raised_ms" not in extra
    assert timer.measurement("eager").method == "eager"
    assert timer.measurement("eager").latency_ms == pytest.approx(0.05, rel=1e-3)


@pytest.mark.parametrize(
    ("fresh_us", "size_bytes", "latency_us"),
    [
        (8.0, 0, 10.0),
        (11.5, 0, 10.0),  # 15 % of what is above 1 us, or 2 us are allowed, if less
        (20.0, 0, 18.0),
        (100.0, 0, 98.0),
        (100.0, (50 << 18) + 3_000_000, 97.0),  # and what it takes to write back what a cache does not keep
    ],
)
def test_what_is_computed_before_the_clock_gains_nothing(make_timer, fresh_us, size_bytes, latency_us):
    device = Device(
        {COLD: 10_000.0, FRESH: fresh_us * 1000, EAGER: 50_000.0, EAGER_FRESH: 50_000.0}, size_bytes=size_bytes
    )
    timer = sampled(make_timer(device))
    assert timer.measurement().latency_ms == pytest.approx(latency_us / 1000, rel=0.01)
    assert ("raised_ms" in timer.to_extra()) is (latency_us > 10)


@pytest.mark.parametrize(("first", "passes", "latency_us"), [(10_000, 9, 20), (10_000, 1, 10), (200, 9, 10)])
def test_a_call_that_works_for_the_others_of_its_pass_gains_nothing(make_timer, first, passes, latency_us):
    device = Device(first=CALLS * first)
    timer = sampled(make_timer(device), passes)
    assert timer.measurement().latency_ms == pytest.approx(latency_us / 1000, rel=0.01)


def test_what_is_computed_before_an_eager_call_gains_nothing(make_timer):
    device = Device({COLD: 10_000.0, FRESH: 10_000.0, EAGER: 50_000.0, EAGER_FRESH: 100_000.0})
    timer = sampled(make_timer(device))
    assert timer.measurement().call_ns == pytest.approx(85_000, rel=0.01)
    assert timer.measurement("eager").latency_ms == pytest.approx(0.085, rel=0.01)
    assert timer.measurement().latency_ms == pytest.approx(0.01, rel=0.01)


def test_slow_passes_without_calls_shorten_nothing(make_timer):
    timer = sampled(make_timer(Device(nothing=5000.0)))
    trusted = sampled(make_timer(Device(), is_trusted=True), 9)
    assert timer.measurement().latency_ms == pytest.approx(0.01, rel=0.01)
    timer.compare_with(trusted)
    assert timer.measurement().latency_ms == pytest.approx(0.01 + 0.005 - 0.001 - 0.00015, rel=0.01)
    assert trusted.measurement().latency_ms == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize(("size_bytes", "most_us"), [(0, 10.0), (20_000_000, 110.0)])
def test_without_a_trusted_worker_a_constant_bounds_what_is_subtracted(make_timer, size_bytes, most_us):
    for nothing, subtracted in ((most_us - 1.0, most_us - 1.0), (1000.0, most_us)):
        timer = sampled(make_timer(Device(nothing=nothing * 1e3, size_bytes=size_bytes)))
        timer.compare_with(None)
        assert timer.measurement().overhead_ns == pytest.approx(subtracted * 1e3, rel=0.01)
        assert timer.measurement().latency_ms == pytest.approx((10.0 + nothing - subtracted) / 1e3, rel=0.01)


def test_a_call_that_takes_less_than_none_is_impossible(make_timer):
    timer = sampled(make_timer(Device({COLD: -500.0, FRESH: -500.0, EAGER: 10.0, EAGER_FRESH: 10.0}, nothing=5000.0)))
    with pytest.raises(Rejected, match="impossible latency") as caught:
        timer.measurement()
    assert caught.value.status is EvaluationStatus.REWARD_HACK


def test_nothing_below_the_least_call_is_published(make_timer):
    trusted = sampled(make_timer(Device(), is_trusted=True))
    short, impossible = (
        sampled(make_timer(Device({COLD: taken, FRESH: taken, EAGER: 5000.0, EAGER_FRESH: 5000.0})))
        for taken in (800.0, 300.0)
    )
    for timer in (short, impossible):
        timer.compare_with(trusted)
    assert short.measurement().latency_ms == pytest.approx(0.0009, rel=0.02)
    with pytest.raises(Rejected, match=r"a kernel that writes outputs after one read takes 0\.90 us"):
        impossible.measurement()
    on_cpu = sampled(make_timer(Device(dict.fromkeys((COLD, FRESH, EAGER, EAGER_FRESH), 10.0)), is_cuda=False))
    assert {on_cpu.measurement().call_ns, *on_cpu.measurement().samples_ns} == {50.0}  # an empty Python function


@pytest.mark.parametrize(("is_compared", "confirmed"), [(False, 1), (True, 0)])
def test_recorded_reads_are_confirmed_where_no_timed_call_is_compared(make_timer, is_compared, confirmed):
    device = Device(reads=("main.py:3 (.item())",))
    make_timer(device, is_compared=is_compared)
    assert len(make_timer.finished) == confirmed
    with pytest.raises(NotCapturable, match=r"main\.py:3 .* and 'y' depends on integers alone"):
        make_timer(device, is_compared=is_compared, structural_outputs=("y",))
    with pytest.raises(NotCapturable, match=r"main\.py:3 .* beside a setup"):
        make_timer(device, is_compared=is_compared, has_setup=True)


def test_a_digest_of_large_outputs_that_lie_in_memory_is_not_the_calls_time(make_timer):
    large = 64 << 20
    for device, subtracted in (
        (Device(), 0.0),
        (Device(output_bytes=large, digests=(1024, 800)), 224.0),
        (Device(output_bytes=large, digests=(800, 960)), -160.0),
        (Device(output_bytes=large, digests=(8000, 800)), 240.0),  # nobody believes more than a share
        (Device(output_bytes=large, digests=(16_000_000, 800)), -800.0),  # more than the call took
    ):
        timer, trusted = sampled(make_timer(device)), sampled(make_timer(Device(), is_trusted=True))
        timer.compare_with(trusted)
        found = timer.measurement()
        assert (found.latency_ms * 1e6, found.call_ns) == pytest.approx((1e4 - subtracted, 5e4 - subtracted), abs=60)


def test_neither_an_empty_function_nor_the_reference_is_accused(make_timer):
    nearly = dict.fromkeys((COLD, FRESH, EAGER, EAGER_FRESH), 20.0)
    trusted = sampled(make_timer(Device(), is_trusted=True))
    empty = sampled(make_timer(Device(nearly, output_bytes=0)))
    empty.compare_with(trusted)
    assert empty.measurement().latency_ms == pytest.approx(5e-5)
    faster = dict.fromkeys((COLD, FRESH, EAGER, EAGER_FRESH), -500.0)
    for options in ({"is_trusted": True}, {"is_compared": False}):
        assert sampled(make_timer(Device(faster), **options)).measurement().latency_ms == pytest.approx(5e-5)


@pytest.mark.parametrize(("size_bytes", "is_told"), [(1 << 16, True), (1 << 24, False)])
def test_calls_that_are_ahead_in_the_other_order_alone_are_impossible(make_timer, size_bytes, is_told):
    trusted = sampled(make_timer(Device(), is_trusted=True))
    taken = {COLD: 1500.0, FRESH: -3000.0, EAGER: 5000.0, EAGER_FRESH: 5000.0}
    timer = sampled(make_timer(Device(taken, size_bytes=size_bytes)))
    timer.compare_with(trusted)
    with pytest.raises(Rejected, match="in the order fresh") if is_told else nullcontext():
        timer.measurement()


@pytest.mark.parametrize(("device", "options"), [(Device(), {"may_capture": False}), (Device(), {"is_cuda": False})])
def test_what_cannot_be_captured_has_the_latency_of_its_calls(make_timer, device, options):
    timer = sampled(make_timer(device, **options))
    assert native.SOLUTION not in {kind for kind, _ in device.composed}
    found = timer.measurement()
    assert found.method == ("eager" if "may_capture" in options else "cpu")
    assert found.latency_ms == pytest.approx(found.call_ns / 1e6)
    assert found.latency_ms == pytest.approx(0.05, rel=1e-2)
    assert timer.to_extra()["orders_ms"] == {}


class TestDisturbance:
    @pytest.mark.parametrize("late", [1, 5])
    def test_passes_with_late_work_do_not_count(self, make_timer, late):
        quiet, disturbed = Device(), Device(disturbed=[0] * 2 + [100_000] * late)
        expected = len(sampled(make_timer(quiet), 8).measurement().samples_ns)
        timer = sampled(make_timer(disturbed), 8)
        assert timer.to_extra()["disturbed_passes"] == late
        assert "busy for 100 us after the last call" in timer.to_extra()["disturbances"][0]
        assert len(timer.measurement().samples_ns) <= expected

    @pytest.mark.parametrize(
        ("device", "said"),
        [
            (Device(end_ns=100_000), "the device was busy for 100 us after the last call of a pass"),
            (Device(ran_seconds=1e-4), r"threads of the worker ran for 100\.0 us although it had nothing to do"),
        ],
    )
    def test_what_always_runs_beside_is_an_exploit(self, make_timer, device, said):
        timer = make_timer(device)
        with pytest.raises(Rejected, match=said) as caught:
            sampled(timer, 30)
        assert caught.value.status is EvaluationStatus.REWARD_HACK

    def test_a_driver_thread_that_wakes_up_is_none(self, make_timer):
        assert "disturbed_passes" not in sampled(make_timer(Device(ran_seconds=5e-6))).to_extra()


class TestEnd:
    def test_precise_calls_end_early_and_others_at_the_limit(self, make_timer):
        exact, vague = make_timer(Device()), make_timer(Device(scatter=4000.0))
        for timer in (exact, vague):
            assert not timer.is_done(math.inf)
            sampled(timer, 6)
        assert exact.is_done(math.inf)
        assert not vague.is_done(math.inf)
        assert vague.is_done(0.0)
        assert sampled(vague, 20).is_done(math.inf), "it has the most calls"

    def test_what_is_precise_is_not_sampled_again(self, make_timer):
        device = Device()
        timer = sampled(make_timer(device), 6)
        before = device.made
        timer.sample()
        assert device.made == before

    @pytest.mark.parametrize("taken_ns", [-1.0, math.nan, math.inf])
    def test_a_warm_up_without_a_duration_is_a_forgery(self, make_timer, taken_ns):
        with pytest.raises(WorkerLost) as caught:
            make_timer(Device(), warm_ns=taken_ns)
        assert caught.value.is_forgery


@attrs.define
class Watch:
    """A clock monitor that gives what it is told, the last answer again and again."""

    throttled: list[bool]

    def was_throttled(self, seconds):
        return self.throttled.pop(0) if len(self.throttled) > 1 else self.throttled[0]

    def clock_mhz(self, seconds):
        return 1500


@pytest.mark.parametrize(
    ("throttled", "passes", "counted", "extra"),
    [
        ([True, True, False], 4, 2, {"sm_clock_mhz": 1500, "throttled_passes": 2}),
        ([True], 25, 3, {"sm_clock_mhz": 1500, "throttled_passes": 20}),  # it is always so slow, and three suffice
        (None, 1, 1, {}),
    ],
)
def test_throttled_passes_are_discarded_and_counted(make_timer, throttled, passes, counted, extra):
    watch = None if throttled is None else Watch(throttled)
    timer = sampled(make_timer(Device(), is_cuda=False, watch=watch), passes)
    assert len(timer.measurement().samples_ns) == CALLS * counted
    found = timer.to_extra()
    assert {name: found[name] for name in ("sm_clock_mhz", "throttled_passes") if name in found} == extra


def test_lines_that_a_worker_reports_are_short_and_plain():
    lines = ["k.py:2 (.item())", "k.py\nPASSED <b>\x1b[2J</b>:3", "x" * 1000]
    assert reported_lines(lines) == ["k.py:2 (.item())", "k.py?PASSED <b>??2J<?b>:3", "x" * 120]
    assert len(reported_lines(["k.py:1"] * 100)) == 20
