"""Device clocks, and device settings that outlive a worker: clocks, power limit, compute mode, persistence.

A monitor samples the clock of the multiprocessors, so that passes of a throttled device are not counted.

A worker cannot change settings where the sandbox holds: NVIDIA's kernel driver asks for ``CAP_SYS_ADMIN`` at each
request (``NV_IS_SUSER`` in its open modules), which `sandbox.processes.drop_privileges` drops, also for root, and
NVML documents every such call as reserved for administrators. An administrator may have opened application clocks
and auto boost to all users (``nvidia-smi -acp UNRESTRICTED``), and the sandbox may be switched off. So the judge
reads the settings before and after each worker, reports differences, and restores them where it may.

Locked clocks (``nvidia-smi -lgc``) can be set and reset but not read, so they are not settings here: resetting
them unasked would undo what an operator has locked. The monitor sees the clocks that they lead to.
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

    Args:
        read: Gives the SM clock in MHz and NVML's throttle reasons.
        read_load: Gives the percentage of the last time in which a kernel ran; None if that is not known.
    """

    def __init__(self, read: Callable[[], tuple[int, int]], read_load: Callable[[], int] | None = None) -> None:
        self._read, self._read_load = read, read_load
        self._busy_seconds = 0.0
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


@attrs.frozen
class SettingChange:
    """A setting that differs between two readings.

    Args:
        setting: Its name.
        before: Its value in the first reading.
        after: Its value in the second one.
        problem: Why it was not restored; empty where it was.
    """

    setting: str
    before: object
    after: object
    problem: str = ""

    def __str__(self) -> str:
        outcome = f"not restored: {self.problem}" if self.problem else "restored"
        return f"{self.setting} of the device changed from {self.before} to {self.after} ({outcome})"


class DeviceSettings:
    """Reads and restores the settings of one device.

    Args:
        nvml: The module ``pynvml``, initialised.
        handle: Its handle of the device.
    """

    def __init__(self, nvml: Any, handle: object) -> None:
        self._nvml = nvml
        self._settings: Mapping[str, tuple[Callable[[], object], Callable[[Any], object]]] = {
            "application_clocks_mhz": (
                lambda: tuple(
                    int(nvml.nvmlDeviceGetApplicationsClock(handle, kind))
                    for kind in (nvml.NVML_CLOCK_MEM, nvml.NVML_CLOCK_GRAPHICS)
                ),
                lambda clocks: nvml.nvmlDeviceSetApplicationsClocks(handle, *clocks),
            ),
            "auto_boost": (
                lambda: int(nvml.nvmlDeviceGetAutoBoostedClocksEnabled(handle)[0]),
                lambda is_on: nvml.nvmlDeviceSetAutoBoostedClocksEnabled(handle, is_on),
            ),
            "compute_mode": (
                lambda: int(nvml.nvmlDeviceGetComputeMode(handle)),
                lambda mode: nvml.nvmlDeviceSetComputeMode(handle, mode),
            ),
            "persistence": (
                lambda: int(nvml.nvmlDeviceGetPersistenceMode(handle)),
                lambda mode: nvml.nvmlDeviceSetPersistenceMode(handle, mode),
            ),
            "power_limit_mw": (
                lambda: int(nvml.nvmlDeviceGetPowerManagementLimit(handle)),
                lambda limit: nvml.nvmlDeviceSetPowerManagementLimit(handle, limit),
            ),
        }

    def read(self) -> Mapping[str, object]:
        """The current settings, without those that this device does not have or this driver does not tell."""
        found: dict[str, object] = {}
        for name, (get, _) in self._settings.items():
            with suppress(self._nvml.NVMLError):
                found[name] = get()
        return found

    def restore(self, before: Mapping[str, object]) -> tuple[SettingChange, ...]:
        """Compare the current settings with earlier ones, and restore those that differ.

        A setting that could not be read at either time is not a difference.

        Returns:
            The differences, each with the reason if it could not be restored.
        """
        return tuple(
            SettingChange(name, before[name], after, self._write(name, before[name]))
            for name, after in self.read().items()
            if name in before and before[name] != after
        )

    def _write(self, name: str, value: object) -> str:
        """Restore a setting; returns the reason where that fails."""
        try:
            self._settings[name][1](value)
        except self._nvml.NVMLError as error:
            return str(error)
        return ""


def settings_of(device: torch.device) -> DeviceSettings | None:
    """The settings of a CUDA device; None on the CPU and without NVML."""
    found = _nvml_of(device)
    return None if found is None else DeviceSettings(*found)
