"""Device clocks, and device settings that outlive a worker: clocks, power limit, compute mode, persistence.

A monitor samples the clock of the multiprocessors, so that passes of a throttled device are not counted.

A worker cannot change settings where the sandbox holds: NVIDIA's kernel driver asks for ``CAP_SYS_ADMIN`` at each
request (``NV_IS_SUSER`` in its open modules), which `sandbox.processes.drop_privileges` drops, also for root, and
NVML documents every such call as reserved for administrators. But these may have opened application clocks and auto
boost to all users (``nvidia-smi -acp UNRESTRICTED``), and the sandbox may be off. So the judge reads the settings when
it starts and after each workload, and flags latencies that were measured with others. Locked clocks (``nvidia-smi
-lgc``) cannot be read; the monitor sees the clocks that they lead to.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any

import attrs
import torch

_INTERVAL_SECONDS = 0.01
_KEPT = 10_000  # of the newest readings, at least: 100 s
_SLOW = 0.95  # below this share of the highest clock seen, the device is throttled
_SLOWDOWNS = 0x8 | 0x40 | 0x80 | 0x20  # NVML's reasons: HW slowdown, HW thermal, HW power brake, SW thermal


@attrs.frozen
class Reading:
    """One reading of the device: its time on the monotonic clock, and NVML's reasons for a lower clock, as bits."""

    seconds: float
    sm_clock_mhz: int
    reasons: int


class ClockWatch:
    """Reads the clock repeatedly, in a thread.

    `read` gives the SM clock in MHz and NVML's throttle reasons; `read_load`, if it is known, the percentage of time in
    which a kernel ran.
    """

    def __init__(self, read: Callable[[], tuple[int, int]], read_load: Callable[[], int] | None = None) -> None:
        self._read, self._read_load = read, read_load
        self._busy_seconds = self._taken_seconds = 0.0
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
        reading = Reading(time.monotonic(), *self._read())
        self._highest = max(self._highest, reading.sm_clock_mhz)
        if self._read_load is not None and self._readings:
            self._busy_seconds += self._read_load() / 100 * (reading.seconds - self._readings[-1].seconds)
        self._readings.append(reading)
        if len(self._readings) >= 2 * _KEPT:
            self._readings = self._readings[-_KEPT:]  # a new list: other threads may be reading the old one

    def take_busy_seconds(self) -> float | None:
        """For how long a kernel has run on the device since the last call; None if that is not known."""
        before, self._taken_seconds = self._taken_seconds, self._busy_seconds
        return None if self._read_load is None else self._taken_seconds - before

    def since(self, seconds: float) -> list[Reading]:
        """The readings from a point of the monotonic clock on, and the last one before it."""
        readings = self._readings
        first = bisect_left(readings, seconds, key=attrgetter("seconds"))
        return readings[max(first - 1, 0) :]

    def was_throttled(self, seconds: float) -> bool:
        """Whether the device was throttled at some time since then."""
        least = _SLOW * self._highest
        return any(each.reasons & _SLOWDOWNS or each.sm_clock_mhz < least for each in self.since(seconds))

    def clock_mhz(self, seconds: float) -> int:
        """The median clock since then."""
        clocks = sorted(reading.sm_clock_mhz for reading in self.since(seconds))
        return clocks[len(clocks) // 2] if clocks else 0


def _nvml_of(device: torch.device) -> tuple[Any, object] | None:
    """NVML and its handle of a CUDA device; None on the CPU and without NVML."""
    if device.type == "cpu":
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:
        return None


def watch_clock(device: torch.device) -> ClockWatch | None:
    """The monitor of a CUDA device; None on the CPU and without NVML."""
    if (found := _nvml_of(device)) is None:
        return None
    nvml, handle = found

    def read() -> tuple[int, int]:
        clock = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
        return clock, nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)

    def read_load() -> int:
        return int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)

    try:
        read_load()
    except nvml.NVMLError:  # a part of a device (MIG) does not tell its load
        return ClockWatch(read)
    return ClockWatch(read, read_load)


def settings_of(device: torch.device) -> dict[str, object]:
    """The settings of a CUDA device, without those that it does not have or its driver does not tell; none on the CPU.

    They outlive a worker that changes them.
    """
    if (found := _nvml_of(device)) is None:
        return {}
    nvml, handle = found
    readers: Mapping[str, Callable[[], object]] = {
        "application_clocks_mhz": lambda: tuple(
            int(nvml.nvmlDeviceGetApplicationsClock(handle, kind))
            for kind in (nvml.NVML_CLOCK_MEM, nvml.NVML_CLOCK_GRAPHICS)
        ),
        "auto_boost": lambda: int(nvml.nvmlDeviceGetAutoBoostedClocksEnabled(handle)[0]),
        "compute_mode": lambda: int(nvml.nvmlDeviceGetComputeMode(handle)),
        "persistence": lambda: int(nvml.nvmlDeviceGetPersistenceMode(handle)),
        "power_limit_mw": lambda: int(nvml.nvmlDeviceGetPowerManagementLimit(handle)),
    }
    settings: dict[str, object] = {}
    for name, read in readers.items():
        with suppress(nvml.NVMLError):
            settings[name] = read()
    return settings
