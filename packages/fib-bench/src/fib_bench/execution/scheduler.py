"""Scheduler of a run. It distributes plans over device workers: a free worker takes the largest item that is left.

A device worker is a device with its judge, on this machine or another. A worker that fails is restarted a few
times; then it is excluded, and the others take its work. A failing solution is a result, not a failure of a worker.
`make_scheduler` starts the workers that a configuration names: judges for each device of this machine, or a cluster's.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from fib_schema import Environment, FibError, Problem, Solution

from ..config.model import BenchmarkConfig
from ..errors import InvalidConfig, JudgeFailed, UnsupportedDevice
from ..events import DeviceExcluded, Evaluated, Event, Skipped
from ..plan import DefinitionPlan, Skip
from .judge_process import JudgeProcess, finished_pairs

_MAX_FAILURES = 3  # of a worker in succession
_FEW = 4  # evaluations for each worker: each workload is a piece
_SMALL = 0.15  # of a worker's share of the work: a definition with less of it is not split
# Shares of a definition, and the size of their pieces in shares of a worker's work: pieces become smaller, so that no
# worker idles for long at the end.
_ROUNDS = ((0.6, 0.6), (0.25, 0.25), (0.15, 0.07))


class DeviceWorker(Protocol):
    """A device with its judge."""

    @property
    def environment(self) -> Environment:
        """The hardware and the versions that traces state."""

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        """Run the plan for one definition; `JudgeFailed` if the judge has died and cannot be restarted."""

    def close(self) -> None:
        """Terminate all processes that were started."""


class Scheduler(AbstractContextManager["Scheduler"]):
    """Runs plans on device workers, each served by a thread. All start at once; the constructor waits for the first."""

    def __init__(self, factories: Iterable[tuple[str, Callable[[], DeviceWorker]]]) -> None:
        self._factories = list(factories)
        self._workers: dict[str, DeviceWorker] = {}
        self._parts: list[DefinitionPlan] = []
        self._under_way = 0
        self._change = threading.Condition()
        self._events: SimpleQueue[Event | BaseException | None] = SimpleQueue()
        self._is_stopping = False
        self._has_begun = threading.Event()
        self._is_closed = threading.Event()
        others = [threading.Thread(target=self._serve, args=factory, daemon=True) for factory in self._factories[1:]]
        for thread in others:
            thread.start()
        name, factory = self._factories[0]
        try:
            self._workers[name] = factory()
        except BaseException:
            self.close()
            raise
        self._environment = self._workers[name].environment

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def environment(self) -> Environment:
        """The hardware and the versions that traces state; they are equal for all workers."""
        return self._environment

    @property
    def device_count(self) -> int:
        """The number of devices that share the work."""
        return len(self._factories)

    def execute(self, parts: Sequence[DefinitionPlan]) -> Iterator[Event]:
        """Run plans, of which several workers split each definition; raises what a worker raised."""
        left = len(self._factories)
        with self._change:
            if not self._is_stopping:  # else the run was stopped before it began
                self._parts.extend(_split(parts, left))
        self._has_begun.set()
        threading.Thread(target=self._serve, args=self._factories[0], daemon=True).start()
        while left:
            event = self._events.get()
            if event is None:
                left -= 1
            elif isinstance(event, BaseException):
                raise event
            else:
                yield event
        for part in self._parts:  # all workers are excluded
            for workload in part.workloads:
                skip = Skip(part.definition.name, None, workload.uuid, "no device is left", is_failure=True)
                yield Skipped(skip, len(part.pending[workload.uuid]))
        self._parts.clear()

    def stop(self) -> None:
        """Finish the running evaluations, and start no others."""
        with self._change:
            self._is_stopping = True
            self._parts.clear()
            self._change.notify_all()

    def close(self) -> None:
        """Terminate all workers, at the same time, because each waits until its processes have ended."""
        self.stop()
        with self._change:
            workers = list(self._workers.values())
            self._workers.clear()
        with ThreadPoolExecutor(max(len(workers), 1), "fib-bench-close") as pool:
            list(pool.map(lambda worker: worker.close(), workers))
        self._is_closed.set()
        self._has_begun.set()

    # -- in the threads --------------------------------------------------------------------------

    def _serve(self, name: str, factory: Callable[[], DeviceWorker]) -> None:
        """Run items on a worker until there are none, or the worker has failed too often."""
        failures = 0
        try:
            with suppress(JudgeFailed):  # the next start, for the first item, counts as a failure
                self._open(name, factory)
            self._has_begun.wait()
            while failures < _MAX_FAILURES and (part := self._next_part()) is not None:
                done: set[tuple[str, str | None]] = set()
                try:
                    self._work_on(part, self._worker(name, factory), done)
                    failures = 0
                except JudgeFailed as error:
                    failures += 1
                    self._close(name)
                    self._requeue(part.without(done))
                    if failures == _MAX_FAILURES:
                        self._events.put(DeviceExcluded(name, str(error)))
                finally:
                    self._finish()
        except BaseException as error:  # noqa: BLE001 the boundary of the thread: `execute` raises it
            self._events.put(error)
        finally:
            self._events.put(None)
            self._is_closed.wait()  # a worker's process is killed when the thread that started it ends

    def _worker(self, name: str, factory: Callable[[], DeviceWorker]) -> DeviceWorker:
        worker = self._open(name, factory)
        ours, theirs = self._environment.hardware, worker.environment.hardware
        if ours != theirs:
            raise JudgeFailed(f"the device is {theirs!r} and the run is for {ours!r}; run different devices separately")
        return worker

    def _open(self, name: str, factory: Callable[[], DeviceWorker]) -> DeviceWorker:
        if name in self._workers:
            return self._workers[name]
        try:
            worker = factory()
        except JudgeFailed:
            raise
        except (FibError, OSError) as error:
            raise JudgeFailed(str(error)) from error
        with self._change:
            is_late = self._is_stopping
            if not is_late:
                self._workers[name] = worker
        if is_late:
            worker.close()
            raise JudgeFailed("the run was stopped while the worker started")
        return worker

    def _close(self, name: str) -> None:
        with self._change:
            worker = self._workers.pop(name, None)
        if worker is not None:
            worker.close()

    def _work_on(self, part: DefinitionPlan, worker: DeviceWorker, done: set[tuple[str, str | None]]) -> None:
        for event in worker.execute(part):
            done.update(finished_pairs(event))
            self._events.put(event)
            if self._is_stopping and isinstance(event, Evaluated | Skipped):
                return

    def _next_part(self) -> DefinitionPlan | None:
        """The next part; waits while another worker may still requeue one."""
        with self._change:
            while not self._parts and self._under_way:
                self._change.wait()
            if not self._parts:
                return None
            self._under_way += 1
            return self._parts.pop(0)

    def _finish(self) -> None:
        with self._change:
            self._under_way -= 1
            self._change.notify_all()

    def _requeue(self, part: DefinitionPlan) -> None:
        with self._change:
            if part.count and not self._is_stopping:
                self._parts.insert(0, part)


def _split(parts: Sequence[DefinitionPlan], workers: int) -> list[DefinitionPlan]:
    """Split the work for several workers, the largest pieces first.

    Each piece has a process for each solution, and starting a definition takes a second, so only large plans are split.
    Of little work each workload is a piece: one can take as long as all others, as where a reference loops over tokens.
    """
    if workers == 1:
        return list(parts)
    each, pieces = sum(part.count for part in parts) / workers, list[DefinitionPlan]()
    if each <= _FEW:
        for part in parts:
            pieces += part.split((count := max(len(part.workloads), 1)) * -(-workers // (len(parts) * count)))
        return sorted(pieces, key=lambda piece: -math.prod(piece.workloads[0].axes.values()))
    for part in parts:
        if part.count <= _SMALL * each:
            pieces += part.split(1)
            continue
        for (_, size), some in zip(_ROUNDS, part.shares(share for share, _ in _ROUNDS), strict=True):
            count = round(some.count / max(size * each, 1.0))
            if len(part.workloads) >= workers:
                count = min(count, len(some.workloads))  # pieces that share a workload prepare it twice
            pieces += some.split(count)
    return sorted(pieces, key=lambda piece: -piece.count)


# -- the workers that a configuration names --------------------------------------------------------------------

ALL = "all"
_MAX_JUDGES, _CORES_PER_JUDGE = 4, 4  # of one device; more of them wait for it, and compilers need cores
_BYTES_PER_JUDGE = 16 << 30  # device contexts of a judge and its workers take about 2 GiB, their slots up to 4


def concurrency_of(config: BenchmarkConfig, device: str, devices: int = 1) -> int:
    """The number of judges that share a device, of several that share the cores; timing on the CPU needs all of it."""
    if device == "cpu":
        return 1
    if config.concurrency is not None:
        return config.concurrency
    cores = len(os.sched_getaffinity(0)) // devices
    return max(1, min(_MAX_JUDGES, cores // _CORES_PER_JUDGE, _smallest_memory_bytes() // _BYTES_PER_JUDGE))


def _smallest_memory_bytes() -> int:
    """The memory of the smallest GPU of this machine; 0 where NVML does not tell. No device context is made."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return min((int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles), default=0)
    except pynvml.NVMLError:
        return 0


def devices_of(config: BenchmarkConfig) -> Sequence[str]:
    """The devices to run on, each once; `UnsupportedDevice` if all are wanted and there is none."""
    if config.devices is None:
        return (config.device,)
    every = _all_devices() if ALL in config.devices else ()
    return tuple(dict.fromkeys(name for word in config.devices for name in (every if word == ALL else (word,))))


def _all_devices() -> Sequence[str]:
    import torch

    count = torch.cuda.device_count()
    if not count:
        raise UnsupportedDevice(ALL, "no CUDA device is visible on this machine")
    return tuple(f"cuda:{index}" for index in range(count))


def make_scheduler(config: BenchmarkConfig, root: Path | None, baselines: Mapping[str, Solution]) -> Scheduler:
    """The scheduler that a configuration names; settings that contradict each other are an `InvalidConfig`."""
    _check(config)
    if config.executor == "ray":
        from .ray_scheduler import worker_factories  # imports ray, an extra

        return Scheduler(worker_factories(config, root, baselines))
    devices = devices_of(config)
    factories = []
    for device in devices:
        count = concurrency_of(config, device, len(devices))
        one = config.with_fields(device=device, devices=None, concurrency=count)
        names = [device] if count == 1 else [f"{device} (judge {index + 1} of {count})" for index in range(count)]
        factories += [(name, partial(JudgeProcess, one, root, baselines)) for name in names]
    return Scheduler(factories)


def _check(config: BenchmarkConfig) -> None:
    """Reject settings that the scheduler would ignore."""
    is_ray, place = config.executor == "ray", "<configuration>"
    if config.devices is not None and is_ray:
        raise InvalidConfig((Problem(place, "devices", "a Ray cluster lists its devices itself"),))
    if config.address is not None and not is_ray:
        raise InvalidConfig((Problem(place, "address", "only a Ray cluster has one: set `executor` to 'ray'"),))
