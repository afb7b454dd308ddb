"""Clock monitor. Reads a device's clock, so that throttled samples can be discarded, and how busy the device is."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from operator import attrgetter

import attrs
import torch

_INTERVAL_SECONDS = 0.01
_KEPT = 10_000  # of the newest readings, at least: 100 s
_SLOW = 0.95  # below this share of the highest clock seen, the device is throttled
_HARDWARE_SLOWDOWN = 0x8 | 0x40 | 0x80  # NVML's reasons: HW slowdown, HW thermal, HW power brake
_THERMAL_SLOWDOWN = 0x20


@attrs.frozen
class Reading:
    """One reading of the device."""

    seconds: float
    """The time of the reading, on the monotonic clock."""
    sm_clock_mhz: int
    reasons: int
    """NVML's reasons for a lower clock, as bits."""


class ClockWatch:
    """Reads the clock repeatedly, in a thread.

    Args:
        read: Gives the SM clock in MHz and NVML's throttle reasons.
        read_load: Gives the percentage of the last time in which a kernel ran; None if that is not known.
    """

    def __init__(self, read: Callable[[], tuple[int, int]], read_load: Callable[[], int] | None = None) -> None:
        self._read, self._read_load = read, read_load
        self._busy_seconds = 0.0
        self._load_since: float | None = None
        self._readings: list[Reading] = []
        self._highest = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fib-clock-watch", daemon=True)

    def start(self) -> None:
        """Take a reading, and start the thread."""
        self.take_reading()
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ends.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ends.wait(_INTERVAL_SECONDS):
            self.take_reading()

    def take_reading(self) -> None:
        """Read once; the oldest readings are forgotten."""
        clock, reasons = self._read()
        now = time.monotonic()
        self._highest = max(self._highest, clock)
        self._readings.append(Reading(now, clock, reasons))
        if self._read_load is not None:
            since, self._load_since = self._load_since, now
            self._busy_seconds += 0.0 if since is None else self._read_load() / 100 * (now - since)
        if len(self._readings) >= 2 * _KEPT:
            self._readings = self._readings[-_KEPT:]  # a new list: other threads may be reading the old one

    @property
    def busy_seconds(self) -> float | None:
        """For how long a kernel has run on the device since the first reading; None if that is not known."""
        return None if self._read_load is None else self._busy_seconds

    def since(self, seconds: float) -> list[Reading]:
        """The readings from a point of the monotonic clock on, and the last one before it."""
        readings = self._readings
        first = bisect_left(readings, seconds, key=attrgetter("seconds"))
        return readings[max(first - 1, 0) :]

    def was_throttled(self, seconds: float) -> bool:
        """Whether the device was throttled at some time since then."""
        return any(self._is_throttled(reading) for reading in self.since(seconds))

    def _is_throttled(self, reading: Reading) -> bool:
        if reading.reasons & (_HARDWARE_SLOWDOWN | _THERMAL_SLOWDOWN):
            return True
        return reading.sm_clock_mhz < _SLOW * self._highest

    def clock_mhz(self, seconds: float) -> int:
        """The median clock since then."""
        clocks = sorted(reading.sm_clock_mhz for reading in self.since(seconds))
        return clocks[len(clocks) // 2] if clocks else 0


def watch_clock(device: torch.device) -> ClockWatch | None:
    """The monitor of a CUDA device; None on the CPU and without NVML."""
    if device.type == "cpu":
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:
        return None

    def read() -> tuple[int, int]:
        clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
        return clock, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)

    def read_load() -> int:
        return int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)

    return ClockWatch(read, read_load if _works(read_load, pynvml.NVMLError) else None)


def _works(read: Callable[[], int], error: type[Exception]) -> bool:
    """Whether a device tells this: a part of a device (MIG) does not tell its load."""
    try:
        read()
    except error:
        return False
    return True
