"""Tests of the clock monitor, with a device whose readings and times are given."""

import threading
from types import SimpleNamespace

import pytest
import torch
from fib_bench.judge.device import ClockWatch, watch_clock

GPU_IDLE, POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, HW_POWER_BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80


@pytest.fixture
def watched(monkeypatch):
    """Makes a clock watch whose readings are taken once a second, from 100 s on."""

    def make(*readings):
        left = list(readings)
        times = iter(range(100, 100 + len(readings)))
        monkeypatch.setattr("fib_bench.judge.device.time", SimpleNamespace(monotonic=lambda: float(next(times))))
        watch = ClockWatch(lambda: left.pop(0))
        for _ in readings:
            watch.take_reading()
        return watch

    return make


def seconds_of(readings):
    return [reading.seconds for reading in readings]


class TestSince:
    @pytest.mark.parametrize(
        ("seconds", "found"),
        [
            (0.0, [100, 101, 102]),
            (100.5, [100, 101, 102]),  # what was read last before that holds until the next reading
            (101.0, [100, 101, 102]),
            (101.5, [101, 102]),
            (999.0, [102]),
        ],
    )
    def test_gives_the_readings_from_then_on_and_the_last_one_before(self, watched, seconds, found):
        watch = watched((1500, 0), (1600, 1), (1700, 2))
        assert seconds_of(watch.since(seconds)) == found

    def test_forgets_the_oldest_readings(self, monkeypatch):
        monkeypatch.setattr("fib_bench.judge.device._KEPT", 3)
        watch = ClockWatch(lambda: (1500, 0))
        for _ in range(20):
            watch.take_reading()
            assert 1 <= len(watch.since(0)) < 6

    def test_without_a_reading_there_is_none(self, watched):
        watch = watched()
        assert watch.since(0) == []
        assert not watch.was_throttled(0)
        assert watch.clock_mhz(0) == 0


class TestThrottled:
    @pytest.mark.parametrize("reasons", [HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, HW_POWER_BRAKE, HW_THERMAL | GPU_IDLE])
    def test_the_hardware_slowing_itself_down_is(self, watched, reasons):
        assert watched((1980, 0), (1980, reasons), (1980, 0)).was_throttled(100)

    @pytest.mark.parametrize("reasons", [0, GPU_IDLE, POWER_CAP, 0x2, 0x10, 0x100])
    def test_other_reasons_for_a_clock_are_not(self, watched, reasons):
        """A power cap is how the device runs under load; a clock that it lowers far is seen as such."""
        assert not watched((1980, reasons)).was_throttled(100)

    @pytest.mark.parametrize(("clock", "is_throttled"), [(1980, False), (1882, False), (1781, True), (345, True)])
    def test_a_clock_far_below_the_highest_seen_is(self, watched, clock, is_throttled):
        assert watched((1980, 0), (clock, 0)).was_throttled(101.5) is is_throttled

    def test_the_highest_may_be_seen_later(self, watched):
        watch = watched((1000, 0), (1980, 0))
        assert watch.was_throttled(100)
        assert not watch.was_throttled(101.5)

    def test_only_since_then(self, watched):
        watch = watched((1980, HW_THERMAL), (1980, 0), (1980, 0))
        assert watch.was_throttled(101)
        assert not watch.was_throttled(101.5)


class TestClock:
    @pytest.mark.parametrize(
        ("clocks", "median"), [((1500,), 1500), ((1500, 100, 1600), 1500), ((100, 200, 300, 400), 300)]
    )
    def test_is_the_median_since_then(self, watched, clocks, median):
        assert watched(*((clock, 0) for clock in clocks)).clock_mhz(100) == median


def test_the_load_adds_up_over_the_time_between_readings(monkeypatch):
    times, loads = iter([100.0, 101.0, 103.0]), iter([50, 25])
    monkeypatch.setattr("fib_bench.judge.device.time", SimpleNamespace(monotonic=lambda: next(times)))
    watch = ClockWatch(lambda: (1500, 0), lambda: next(loads))
    for _ in range(3):
        watch.take_reading()
    assert watch.take_busy_seconds() == pytest.approx(0.5 * 1 + 0.25 * 2)


def test_without_a_load_it_is_not_known_how_busy_a_device_is(watched):
    assert watched((1500, 0), (1500, 0)).take_busy_seconds() is None


def test_it_reads_until_it_is_stopped():
    has_read_again, count = threading.Event(), 0

    def read():
        nonlocal count
        count += 1
        if count == 3:
            has_read_again.set()
        return 1500 + count, 0

    watch = ClockWatch(read)
    watch.start()
    assert has_read_again.wait(30)
    watch.stop()
    made = count
    assert [reading.sm_clock_mhz for reading in watch.since(0)] == [1500 + index for index in range(1, made + 1)]
    assert not any(thread.name == "fib-clock-watch" for thread in threading.enumerate())


def test_a_cpu_has_no_clock_to_watch():
    assert watch_clock(torch.device("cpu")) is None


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a CUDA device")
def test_a_cuda_device_tells_its_clock():
    watch = watch_clock(torch.device("cuda", 0))
    if watch is None:
        pytest.skip("there is no NVML to ask")
    watch.take_reading()
    assert watch.clock_mhz(0) > 100
