"""Device workers on this machine: one judge process for each device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import attrs
from fib_schema import Solution

from ..config.benchmark import BenchmarkConfig
from ..errors import UnsupportedDevice
from .judge_process import JudgeProcess
from .scheduler import Scheduler

ALL = "all"


def local_scheduler(config: BenchmarkConfig, root: Path | None, baselines: Mapping[str, Solution]) -> Scheduler:
    """Make the scheduler for the devices that a configuration names.

    Raises:
        UnsupportedDevice: There is no such device here.
        JudgeFailed: A judge's process did not start.
    """
    if config.in_process_trusted:
        from .in_process import InProcessWorker  # imports torch

        return Scheduler([(config.device, partial(InProcessWorker, config, root))])
    devices = devices_of(config)
    factories = [
        (device, partial(JudgeProcess, attrs.evolve(config, device=device, devices=None), root, baselines))
        for device in devices
    ]
    return Scheduler(factories)


def devices_of(config: BenchmarkConfig) -> Sequence[str]:
    """The devices to run on, each once.

    Raises:
        UnsupportedDevice: The configuration names all devices, and there is none.
    """
    if config.devices is None:
        return (config.device,)
    names = [name for word in config.devices for name in (_all_devices() if word == ALL else (word,))]
    return tuple(dict.fromkeys(names))


def _all_devices() -> Sequence[str]:
    import torch

    count = torch.cuda.device_count()
    if not count:
        raise UnsupportedDevice(ALL, "no CUDA device is visible on this machine")
    return tuple(f"cuda:{index}" for index in range(count))
