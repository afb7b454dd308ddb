"""Device context. Everything that holds for all functions on one device: roofline, clock monitor, locks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from multiprocessing.connection import Connection

import attrs
import torch

from ..events import Phase
from ..timing.device import ClockWatch, DeviceSettings, DeviceState, SettingChange
from ..timing.roofline import SpeedOfLight
from ..worker.client import Worker, end_all
from .device_lock import DeviceLock
from .phase_timer import PhaseTimer


@attrs.define
class ExclusiveTime:
    """Seconds in which this judge had the device alone, since the last reset; waits are not part of it."""

    seconds: float = 0.0

    def reset(self) -> None:
        """Start again from 0."""
        self.seconds = 0.0


class EndedWorkers:
    """The killed workers of one judge. Other judges of the device time no passes while there are any.

    They are killed at once, and the judge waits for their end when it needs the device undisturbed: the end of a
    worker takes 0.3 s on a CUDA device.

    Args:
        bursts: The lock of the device; None on the CPU.
    """

    def __init__(self, bursts: DeviceLock | None) -> None:
        self._bursts = bursts
        self._workers: deque[Worker] = deque()

    def __bool__(self) -> bool:
        return bool(self._workers)

    def add(self, worker: Worker) -> None:
        """Kill a worker without waiting for its end."""
        self._keep_device(True)  # the end of its device context disturbs passes
        worker.kill()
        self._workers.append(worker)

    def settle(self) -> None:
        """Wait until all have ended, with everything that they started."""
        if self._workers:
            end_all(self._workers)
            self._workers.clear()
            self._keep_device(False)

    def settle_before(self, request: Connection) -> None:
        """Wait until all have ended, or until a request arrives."""
        while self._workers and self._workers[0].close(unless=request):
            self._workers.popleft()
        if not self._workers:
            self._keep_device(False)

    def _keep_device(self, is_kept: bool) -> None:
        if self._bursts is not None:
            self._bursts.keep(is_kept)


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
    lock: DeviceLock | None = None
    """Held alone by the one judge that times a function on the device."""
    bursts: DeviceLock | None = None
    """The same lock where judges share it for all other work on the device; None on the CPU."""
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
        return time.monotonic() - (0.0 if self.lock is None else self.lock.waited_seconds)

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
        if self.lock is None or self.lock.is_alone:
            yield
            return
        self.synchronize()
        with self._changing(self.lock.alone()):
            begin = time.monotonic()
            try:
                yield
            finally:
                self.exclusive_time.seconds += time.monotonic() - begin

    @contextmanager
    def _changing(self, change: AbstractContextManager[None]) -> Iterator[None]:
        """Count the waits at both ends of a block as such."""
        with ExitStack() as stack:
            with self.phases.during(Phase.WAIT):
                stack.enter_context(change)
            yield
            with self.phases.during(Phase.WAIT):
                stack.close()
