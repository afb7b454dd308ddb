"""Device context. Everything that holds for all functions on one device: roofline, clock monitor, locks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import attrs
import torch

from ..events import Phase
from ..timing.clock_monitor import ClockWatch
from ..timing.device_state import DeviceSettings, DeviceState, SettingChange
from ..timing.roofline import SpeedOfLight
from .burst_lock import BurstLock
from .device_lock import DeviceLock, SharedDeviceLock
from .ended_workers import EndedWorkers
from .phase_timer import PhaseTimer


@attrs.define
class ExclusiveTime:
    """Seconds in which this judge had the device alone, since the last reset; waits are not part of it."""

    seconds: float = 0.0

    def reset(self) -> None:
        """Start again from 0."""
        self.seconds = 0.0


@attrs.frozen(kw_only=True)
class DeviceContext:
    """Roofline, clock monitor, settings and locks of one device."""

    device: torch.device
    timeout_seconds: float
    """The bound on one request to a worker."""
    light: SpeedOfLight
    watch: ClockWatch | None
    """The clock monitor; None without NVML."""
    settings: DeviceSettings | None = None
    """Settings of a CUDA device; None without NVML."""
    settings_before: DeviceState | None = None
    """The settings when the judge started."""
    phases: PhaseTimer = attrs.field(factory=PhaseTimer)
    lock: DeviceLock | SharedDeviceLock | None = None
    """Held by the one run that times a function on the device."""
    bursts: BurstLock | None = None
    """Separates timed passes from all other device work of the judges of this user; None on the CPU."""
    is_shared: bool = False
    """Whether this run has several judges on the device."""
    exclusive_time: ExclusiveTime = attrs.field(factory=ExclusiveTime)
    ended: EndedWorkers = attrs.field(init=False)
    """Workers whose end is waited for before the device is given to others or needed alone."""

    @ended.default
    def _no_workers(self) -> EndedWorkers:
        return EndedWorkers(self.bursts)

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

    def seconds(self) -> float:
        """Seconds of the monotonic clock without the waits for other judges: for limits of this judge's own work."""
        return time.monotonic() - (0.0 if self.bursts is None else self.bursts.waited_seconds)

    def settle(self) -> None:
        """Wait for the end of workers that are ending."""
        if self.ended:
            with self.phases.during(Phase.OTHER):
                self.ended.settle()

    # -- turns on the device ---------------------------------------------------------------------

    @contextmanager
    def device_work(self) -> Iterator[None]:
        """Use the device during a block, beside other judges but not while one of them times a pass."""
        if self.bursts is None:
            yield
            return
        with self._changing(self.bursts.sharing()):
            yield

    @contextmanager
    def first_device_work(self) -> Iterator[None]:
        """A block in which a worker makes its device context, while other workers of this judge may be ending."""
        with self.device_work():
            yield
        self.settle()

    @contextmanager
    def no_device_work(self) -> Iterator[None]:
        """Let other judges time passes during a block, in which the worker compiles or is only observed."""
        if self.bursts is None:
            yield
            return
        self.settle()
        self.synchronize()
        with self._changing(self.bursts.apart()):
            yield

    def give_way(self) -> None:
        """Let other judges that wait for the device go first; no worker of this judge is at work."""
        if self.bursts is not None and self.bursts.is_shared and self.bursts.is_wanted:
            self.settle()
            self.synchronize()
            with self.phases.during(Phase.WAIT):
                self.bursts.give_way()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Have the device alone: wait first until no other judge and no other run uses it, and no worker is ending."""
        self.settle()
        if self.bursts is None:
            with self._holding_lock():
                yield
        elif self.bursts.is_alone:
            yield
        else:
            self.synchronize()
            with self._changing(self.bursts.alone()), self._holding_lock():
                yield

    @contextmanager
    def _changing(self, change: AbstractContextManager[None]) -> Iterator[None]:
        """Count the waits at both ends of a block as such."""
        with ExitStack() as stack:
            with self.phases.during(Phase.WAIT):
                stack.enter_context(change)
            yield
            with self.phases.during(Phase.WAIT):
                stack.close()

    @contextmanager
    def _holding_lock(self) -> Iterator[None]:
        asked = time.monotonic()
        if self.lock is not None:
            with self.phases.during(Phase.WAIT):
                self.lock.acquire()
        begin = time.monotonic()
        if self.bursts is not None:
            self.bursts.waited_seconds += begin - asked
        try:
            yield
        finally:
            self.exclusive_time.seconds += time.monotonic() - begin
            if self.lock is not None:
                self.lock.release()
