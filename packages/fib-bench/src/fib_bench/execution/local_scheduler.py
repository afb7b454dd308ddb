"""The scheduler that a configuration names: of this machine, with judges for each device, or of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from fib_schema import Problem, Solution

from ..config.model import BenchmarkConfig
from ..errors import InvalidConfig, UnsupportedDevice
from .judge_process import JudgeProcess
from .scheduler import Scheduler

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
        from .ray_scheduler import ray_scheduler  # imports ray, an extra

        return ray_scheduler(config, root, baselines)
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
