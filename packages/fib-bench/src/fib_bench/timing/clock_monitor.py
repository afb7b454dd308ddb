"""Watches a device's clock while something is timed: samples that were throttled count for nothing."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import attrs
import torch

_INTERVAL_SECONDS = 0.01
_KEPT = 100_000
_SLOW = 0.9  # below this share of the highest clock seen, the device does not run as it can
_HARDWARE_SLOWDOWN = 0x8 | 0x40 | 0x80  # NVML's reasons: HW slowdown, HW thermal, HW power brake
_THERMAL_SLOWDOWN = 0x20


@attrs.frozen
class Reading:
    """What the device said about itself."""

    seconds: float
    """When, on the monotonic clock."""
    sm_clock_mhz: int
    reasons: int
    """NVML's reasons for a lower clock, as bits."""


class ClockWatch:
    """Reads the clock in a thread, again and again.

    Args:
        read: Gives the SM clock in MHz and NVML's throttle reasons.
    """

    def __init__(self, read: Callable[[], tuple[int, int]]) -> None:
        self._read = read
        self._readings: deque[Reading] = deque(maxlen=_KEPT)
        self._highest = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fib-clock-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
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
        """Read once."""
        clock, reasons = self._read()
        self._highest = max(self._highest, clock)
        self._readings.append(Reading(time.monotonic(), clock, reasons))

    def since(self, seconds: float) -> list[Reading]:
        """The readings from a point of the monotonic clock on, and the last one before it."""
        readings = list(self._readings)
        first = next((i for i, r in enumerate(readings) if r.seconds >= seconds), len(readings))
        return readings[max(first - 1, 0) :]

    def was_throttled(self, seconds: float) -> bool:
        """Whether the device ran slower than it can at some time since then."""
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
    """A watch on a CUDA device, or None where there is no NVML to ask."""
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

    return ClockWatch(read)
