"""Device of one judge: its lock, memory, clocks, settings and phases, for all functions that run there.

The *lock* separates timed passes from all other work of the judges of one user on a physical device. It is a
readers-writer lock of two files, each an ``flock``. On a CUDA device judges share it while they or their workers use
the device, and hold it alone for a timed pass, a few milliseconds; on the CPU they hold it alone for a pass, and
otherwise not. Judges that want it wait in a queue, so that a pass is not overtaken by judges that come later. The
kernel releases both files when a process ends, however that happens.

Compilation, starts of workers and waits do not share it. Each request to a worker lets waiting judges go first, and so
does a long call of a reference, whose worker stands still meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partialmethod
from multiprocessing.connection import Connection
from operator import attrgetter
from pathlib import Path
from typing import Any

import attrs
import torch
from fib_schema import get_fib_cache_path
from fib_schema.files import private_folder

from ..events import Phase, PhaseTimer
from ..sandbox.syscalls import free_memory_bytes
from ..timing.work import Peaks, theoretical_peaks
from ..worker.client import Worker, end_all

FOLDER_VARIABLE = "FIB_BENCH_LOCKS"
"""Another folder of locks, for containers that share a device but not a cache."""
_NOTICE_SECONDS = 10.0
_ENOUGH_SHARE = 0.25  # of the device
_HELD_SECONDS = 60.0
_WAIT_SECONDS, _POLL_SECONDS = 30.0, 0.05  # other judges finish a workload meanwhile
_INTERVAL_SECONDS = 0.01  # between two readings of the clock
_KEPT = 10_000  # of the newest readings, at least: 100 s
_SLOW = 0.95  # below this share of the highest clock seen, the device is throttled
_SLOWDOWNS = 0x8 | 0x40 | 0x80 | 0x20  # NVML's reasons: HW slowdown, HW thermal, HW power brake, SW thermal


class DeviceLock:
    """The lock of one device, for one judge.

    Its file is made if it is not there; the queue has the same name with another suffix. Waits count in `phases`.

    Raises:
        UnsafePath: Another user could replace the folder.
        OSError: A file cannot be made.
    """

    def __init__(self, path: Path, phases: PhaseTimer | None = None) -> None:
        self._path, self._lock, self._phases = path, _open(path), phases or PhaseTimer()
        self._queue = _open(path.with_suffix(".queue"))
        self._mode = self._wanted = fcntl.LOCK_UN
        self._is_kept = False
        self.waited_seconds = 0.0
        """The sum of all waits for other judges."""

    def __del__(self) -> None:
        for name in ("_lock", "_queue"):
            with suppress(AttributeError, OSError):
                os.close(getattr(self, name))

    @property
    def is_alone(self) -> bool:
        """Whether this judge holds the lock alone."""
        return self._mode == fcntl.LOCK_EX

    @property
    def is_shared(self) -> bool:
        """Whether this judge shares the lock."""
        return self._mode == fcntl.LOCK_SH

    @property
    def is_wanted(self) -> bool:
        """Whether another judge waits in the queue."""
        if not _try(self._queue, fcntl.LOCK_EX):
            return True
        fcntl.flock(self._queue, fcntl.LOCK_UN)
        return False

    def keep(self, is_kept: bool) -> None:
        """Share the lock outside of blocks and in those of `apart`, too, or do so no more."""
        self._is_kept = is_kept
        self._want(self._wanted)

    def give_way(self) -> None:
        """Let those who wait go first, and share the lock again."""
        self._change(fcntl.LOCK_SH)

    @contextmanager
    def _held_as(self, mode: int) -> Iterator[None]:
        before = self._wanted
        self._want(mode)
        try:
            yield
        finally:
            self._want(before)

    sharing = partialmethod(_held_as, fcntl.LOCK_SH)
    """Share the lock during a block."""
    apart = partialmethod(_held_as, fcntl.LOCK_UN)
    """Do not hold the lock during a block."""
    alone = partialmethod(_held_as, fcntl.LOCK_EX)
    """Hold the lock alone during a block."""

    def _want(self, wanted: int) -> None:
        self._wanted = wanted
        mode = fcntl.LOCK_SH if self._is_kept and wanted == fcntl.LOCK_UN else wanted
        if mode != self._mode:
            self._change(mode)

    def _change(self, mode: int) -> None:
        """Release the lock first: two judges that share it and want it alone would wait for each other."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        self._mode = fcntl.LOCK_UN
        if mode == fcntl.LOCK_UN:
            return
        begin = time.monotonic()
        with self._phases.during(Phase.WAIT):
            self._wait(self._queue, fcntl.LOCK_EX)
            try:
                self._wait(self._lock, mode)
            finally:
                fcntl.flock(self._queue, fcntl.LOCK_UN)
        self._mode = mode
        self.waited_seconds += time.monotonic() - begin

    def _wait(self, descriptor: int, how: int) -> None:
        """Wait for a file; a long wait, as for a judge that is stopped, is reported once."""
        if _try(descriptor, how):
            return
        notice = threading.Timer(_NOTICE_SECONDS, self._report)
        notice.daemon = True
        notice.start()
        try:
            fcntl.flock(descriptor, how)
        finally:
            notice.cancel()

    def _report(self) -> None:
        with suppress(OSError):  # a closed stderr must not end the run
            print(f"waiting for device lock {self._path} (`fuser` shows its holder)", file=sys.stderr, flush=True)


def lock_of(device: torch.device, phases: PhaseTimer | None = None) -> DeviceLock:
    """The lock of a device among the judges of this user, not yet held."""
    return DeviceLock(_path_of(device, "lock"), phases)


@contextmanager
def extra_memory(device: torch.device) -> Iterator[None]:
    """A block in which this judge alone, of those of this user, may exceed its share of a device's memory."""
    descriptor = _open(_path_of(device, "memory"))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def identity_of(device: torch.device) -> str:
    """The device's UUID, which no other device has; ``cpu`` for the processors of this machine."""
    if device.type == "cpu":
        return "cpu"
    return re.sub(r"[^\w-]", "", str(torch.cuda.get_device_properties(device).uuid))


def _path_of(device: torch.device, suffix: str) -> Path:
    """A file for a device; the machine's name is part of that of a CPU, because a cache may be shared by machines."""
    folder = os.environ.get(FOLDER_VARIABLE) or get_fib_cache_path() / "fib-bench-locks"
    name = platform.node() if device.type == "cpu" else identity_of(device)
    return Path(folder) / f"{name}.{suffix}"


def _open(path: Path) -> int:
    path = private_folder(path.parent) / path.name
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _try(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def available_bytes(device: torch.device) -> int:
    """The free memory of a device, in bytes."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # cached blocks of this process count as free
        return torch.cuda.mem_get_info(device)[0]
    return free_memory_bytes()


def wait_for_memory(device: torch.device, needed_bytes: float | None = None, seconds: float = _WAIT_SECONDS) -> None:
    """Wait until so much of a device is free, a quarter of it unless that is given, but not for more than some seconds.

    A solution that runs out of memory beside other judges may fit once these have finished a workload. So its failure
    is not a verdict before it has waited for memory and failed again.
    """
    needed_bytes = _ENOUGH_SHARE * total_bytes(device) if needed_bytes is None else needed_bytes
    end = time.monotonic() + seconds
    while available_bytes(device) < needed_bytes and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)


def total_bytes(device: torch.device) -> int:
    """The memory of a CUDA device, in bytes."""
    return int(torch.cuda.get_device_properties(device).total_memory)


def lacks_memory(message: str) -> bool:
    """Whether a worker's report of a failure names a lack of device memory; a solution can write such a report."""
    return "out of memory" in message.lower().replace("_", " ")  # as torch and as the driver say it


@attrs.frozen
class Reading:
    """One reading of the device: its time on the monotonic clock, and NVML's reasons for a lower clock, as bits."""

    seconds: float
    sm_clock_mhz: int
    reasons: int


class ClockWatch:
    """Reads the SM clock in MHz, NVML's throttle reasons and the percentage of time that kernels run, in a thread."""

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

    A worker cannot change settings, which outlive it, where the sandbox holds: NVIDIA's kernel driver asks for
    ``CAP_SYS_ADMIN`` at each request (``NV_IS_SUSER`` in its open modules), which `sandbox.processes.drop_privileges`
    drops, also for root, and NVML documents every such call as reserved for administrators. But these may have opened
    application clocks and auto boost to all users (``nvidia-smi -acp UNRESTRICTED``), and the sandbox may be off. So
    the judge reads the settings when it starts and after each workload, and flags latencies that were measured with
    others. Locked clocks (``nvidia-smi -lgc``) cannot be read; the monitor sees the clocks that they lead to.
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


@attrs.define(kw_only=True)
class DeviceContext:
    """The device of one judge, and its turns there.

    Workers are killed at once, and the judge waits for their end when it needs the device undisturbed: the end of a
    worker takes 0.3 s on a CUDA device. Other judges of the device time no passes meanwhile.
    """

    device: torch.device
    timeout_seconds: float
    """The bound on one request to a worker, and on one pass."""
    held_timeout_seconds: float = _HELD_SECONDS
    """The bound on one request while this judge holds the lock, for which others wait."""
    is_shared: bool
    """Whether this run has several judges on the device."""
    is_cuda: bool = attrs.field(init=False, default=attrs.Factory(lambda me: me.device.type == "cuda", takes_self=True))
    takes_turns: bool = attrs.Factory(lambda me: me.is_cuda, takes_self=True)
    """Whether judges share the lock for all other work on the device."""
    watch: ClockWatch | None = attrs.Factory(lambda me: watch_clock(me.device), takes_self=True)
    settings: Mapping[str, object] = attrs.Factory(lambda me: settings_of(me.device), takes_self=True)
    """Those of the device when the judge started."""
    peaks: Peaks | None = attrs.Factory(lambda me: theoretical_peaks(me.device), takes_self=True)
    phases: PhaseTimer = attrs.field(factory=PhaseTimer)
    lock: DeviceLock = attrs.Factory(lambda me: lock_of(me.device, me.phases), takes_self=True)
    """Held alone by the one judge that times a function on the device."""
    exclusive_seconds: float = attrs.field(init=False, default=0.0)
    """In which this judge had the device alone, since somebody set this to 0; waits are not part of it."""
    _ending: deque[Worker] = attrs.field(init=False, factory=deque)

    def changed_settings(self) -> list[str]:
        """Clocks, power limit and modes of the device that are not as they were when the judge started."""
        now = settings_of(self.device)
        changed = [name for name, before in self.settings.items() if now.get(name, before) != before]
        return [f"{name} from {self.settings[name]} to {now[name]}" for name in changed]

    def synchronize(self) -> None:
        """Wait for all work that this process has submitted to the device."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def seconds(self) -> float:
        """Seconds of the monotonic clock without the waits for other judges: for limits of this judge's own work."""
        return time.monotonic() - self.lock.waited_seconds

    def kill(self, worker: Worker) -> None:
        """Kill a worker without waiting for its end."""
        self._keep_device(True)  # the end of its device context disturbs passes
        worker.kill()
        self._ending.append(worker)

    def settle(self) -> None:
        """Wait until killed workers have ended, with everything that they started."""
        if self._ending:
            with self.phases.during(Phase.OTHER):
                end_all(self._ending)
                self._ending.clear()
                self._keep_device(False)

    def settle_before(self, request: Connection) -> None:
        """Wait until killed workers have ended, or until a request arrives."""
        while self._ending and self._ending[0].close(unless=request):
            self._ending.popleft()
        if not self._ending:
            self._keep_device(False)

    def _keep_device(self, is_kept: bool) -> None:
        if self.takes_turns:
            self.lock.keep(is_kept)

    def begin_request(self) -> float:
        """Finish this process's work on the device, and let other judges go first; returns the bound on the request."""
        self.synchronize()
        self.give_way()
        return self.request_seconds

    @property
    def request_seconds(self) -> float:
        """The bound on a request that is sent now."""
        is_held = self.lock.is_alone or self.lock.is_shared
        return min(self.timeout_seconds, self.held_timeout_seconds) if is_held else self.timeout_seconds

    def device_work(self) -> AbstractContextManager[None]:
        """Use the device during a block, beside other judges but not while one of them times a pass."""
        return self.lock.sharing() if self.takes_turns else nullcontext()

    @contextmanager
    def no_device_work(self) -> Iterator[None]:
        """Let other judges time passes during a block, in which the worker compiles or is only observed."""
        self.settle()
        if self.takes_turns:
            self.synchronize()
        with self.lock.apart() if self.takes_turns else nullcontext():
            yield

    def is_wanted(self) -> bool:
        """Whether other judges wait for the device while this one shares it."""
        return self.takes_turns and self.lock.is_shared and self.lock.is_wanted

    def give_way(self) -> None:
        """Let other judges that wait for the device go first; no worker of this judge is at work, or it is paused."""
        if self.is_wanted():
            self.settle()
            self.synchronize()
            self.lock.give_way()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Have the device alone: wait first until no other judge and no other run uses it, and no worker is ending."""
        self.settle()
        if self.lock.is_alone:
            yield
            return
        self.synchronize()
        with self.lock.alone():
            begin = time.monotonic()
            try:
                yield
            finally:
                self.exclusive_seconds += time.monotonic() - begin
