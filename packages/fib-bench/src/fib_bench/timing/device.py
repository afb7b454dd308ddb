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
from operator import attrgetter
from typing import Any

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


@attrs.frozen
class DeviceState:
    """The settings of a device at one time; None where the device or the driver does not report a setting.

    Args:
        application_clocks_mhz: The clocks of the memory and of the multiprocessors that applications ask for.
        auto_boost: Whether the device raises its clocks by itself.
        compute_mode: NVML's number for who may use the device: 0 default, 2 prohibited, 3 one process.
        persistence: Whether the driver stays loaded without clients.
        power_limit_mw: In milliwatts.
    """

    application_clocks_mhz: tuple[int, int] | None = None
    auto_boost: bool | None = None
    compute_mode: int | None = None
    persistence: bool | None = None
    power_limit_mw: int | None = None


@attrs.frozen
class SettingChange:
    """A setting that differs between two readings.

    Args:
        setting: The name of the field of `DeviceState`.
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
        self._handle = handle
        self._readers: Mapping[str, Callable[[], object]] = {
            "application_clocks_mhz": self._application_clocks,
            "auto_boost": lambda: bool(nvml.nvmlDeviceGetAutoBoostedClocksEnabled(handle)[0]),
            "compute_mode": lambda: int(nvml.nvmlDeviceGetComputeMode(handle)),
            "persistence": lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle)),
            "power_limit_mw": lambda: int(nvml.nvmlDeviceGetPowerManagementLimit(handle)),
        }
        self._writers: Mapping[str, Callable[[Any], object]] = {
            "application_clocks_mhz": lambda clocks: nvml.nvmlDeviceSetApplicationsClocks(handle, *clocks),
            "auto_boost": lambda enabled: nvml.nvmlDeviceSetAutoBoostedClocksEnabled(handle, int(enabled)),
            "compute_mode": lambda mode: nvml.nvmlDeviceSetComputeMode(handle, mode),
            "persistence": lambda enabled: nvml.nvmlDeviceSetPersistenceMode(handle, int(enabled)),
            "power_limit_mw": lambda limit: nvml.nvmlDeviceSetPowerManagementLimit(handle, limit),
        }

    def read(self) -> DeviceState:
        """The current settings."""
        return DeviceState(**{name: self._value(reader) for name, reader in self._readers.items()})  # type: ignore[arg-type]

    def restore(self, before: DeviceState) -> tuple[SettingChange, ...]:
        """Compare the current settings with earlier ones, and restore those that differ.

        A setting that could not be read at either time is not a difference.

        Returns:
            The differences, each with the reason if it could not be restored.
        """
        after = self.read()
        changes = []
        for name in self._readers:
            old, new = getattr(before, name), getattr(after, name)
            if old is not None and new is not None and old != new:
                changes.append(SettingChange(name, old, new, self._write(name, old)))
        return tuple(changes)

    def _application_clocks(self) -> tuple[int, int]:
        memory, graphics = (
            int(self._nvml.nvmlDeviceGetApplicationsClock(self._handle, kind))
            for kind in (self._nvml.NVML_CLOCK_MEM, self._nvml.NVML_CLOCK_GRAPHICS)
        )
        return memory, graphics

    def _value(self, reader: Callable[[], object]) -> object | None:
        try:
            return reader()
        except self._nvml.NVMLError:
            return None  # not supported by this device, or deprecated in this driver

    def _write(self, name: str, value: object) -> str:
        """Restore a setting; returns the reason where that fails."""
        try:
            self._writers[name](value)
        except self._nvml.NVMLError as error:
            return str(error)
        return ""


def settings_of(device: torch.device) -> DeviceSettings | None:
    """The settings of a CUDA device; None on the CPU and without NVML."""
    if device.type == "cpu":
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return DeviceSettings(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except pynvml.NVMLError:
        return None
