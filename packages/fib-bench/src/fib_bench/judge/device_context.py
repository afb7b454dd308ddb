"""Device context. Everything that holds for all functions on one device: calibration, roofline, clock monitor, lock."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import attrs
import torch

from ..events import Phase
from ..timing.clock_monitor import ClockWatch
from ..timing.device_state import DeviceSettings, DeviceState, SettingChange
from ..timing.roofline import SpeedOfLight
from ..worker.client import WorkerLost
from .device_lock import DeviceLock, SharedDeviceLock
from .phase_timer import PhaseTimer


@attrs.frozen
class Calibration:
    """The cost of reading the CPU clock, measured in a worker without a solution; empty for a CUDA device."""

    overhead_ns: Mapping[int, float]
    """By the number of calls per sample."""

    def of(self, calls_per_sample: int) -> float:
        """The cost per sample.

        Raises:
            WorkerLost: No sample has so many calls: the reply is forged.
        """
        if calls_per_sample not in self.overhead_ns:
            problem = f"the worker reports {calls_per_sample} calls per sample, which is not supported"
            raise WorkerLost(problem, is_forgery=True)
        return self.overhead_ns[calls_per_sample]


@attrs.define
class ExclusiveTime:
    """Seconds of the last exclusive block; waiting for the device lock is not part of it."""

    seconds: float = 0.0


@attrs.frozen(kw_only=True)
class DeviceContext:
    """Calibration, roofline, clock monitor, settings and lock of one device."""

    device: torch.device
    timeout_seconds: float
    """The bound on one request to a worker."""
    calibration: Calibration
    light: SpeedOfLight
    watch: ClockWatch | None
    """The clock monitor; None without NVML."""
    settings: DeviceSettings | None = None
    """Of a CUDA device; None without NVML."""
    settings_before: DeviceState | None = None
    """The settings when the judge started."""
    phases: PhaseTimer = attrs.field(factory=PhaseTimer)
    lock: DeviceLock | SharedDeviceLock | None = None
    """Held by the one run that measures on the device."""
    exclusive_time: ExclusiveTime = attrs.field(factory=ExclusiveTime)

    def restore_settings(self) -> tuple[SettingChange, ...]:
        """Restore changed clocks, power limit and modes of the device; returns the changes."""
        if self.settings is None or self.settings_before is None:
            return ()
        return self.settings.restore(self.settings_before)

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a CUDA device."""
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        """Wait for all work that this process has submitted to the device."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the device lock; wait first until no other run measures on the device."""
        if self.lock is not None:
            with self.phases.during(Phase.WAIT):
                self.lock.acquire()
        begin = time.monotonic()
        try:
            yield
        finally:
            self.exclusive_time.seconds = time.monotonic() - begin
            if self.lock is not None:
                self.lock.release()
