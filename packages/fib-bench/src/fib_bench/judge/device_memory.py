"""Device memory that several judges and their workers share.

A solution that runs out of memory beside other judges may fit once these have finished a workload. So its failure
is not a verdict before it has waited for memory and failed again.
"""

from __future__ import annotations

import time

import torch

from ..sandbox.processes import free_memory_bytes
from ..transport.arenas import release_unused

_MAX_UNUSED_BYTES = 1 << 30  # of a judge, between two evaluations
_ENOUGH_SHARE = 0.25  # of the device
_WAIT_SECONDS, _POLL_SECONDS = 30.0, 0.1  # other judges finish a workload meanwhile


def available_bytes(device: torch.device) -> int:
    """The free memory of a device, in bytes."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # cached blocks of this process count as free
        return torch.cuda.mem_get_info(device)[0]
    return free_memory_bytes()


def trim(device: torch.device) -> None:
    """Give freed memory that torch holds back to a CUDA device, for its other judges and workers, if it is much."""
    if device.type == "cuda":
        release_unused(device, _MAX_UNUSED_BYTES)


def wait_for_memory(device: torch.device) -> None:
    """Wait until a quarter of a device is free, for half a minute at most."""
    end = time.monotonic() + _WAIT_SECONDS
    while available_bytes(device) < _ENOUGH_SHARE * total_bytes(device) and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)


def total_bytes(device: torch.device) -> int:
    """The memory of a CUDA device, in bytes."""
    return int(torch.cuda.get_device_properties(device).total_memory)


def lacks_memory(message: str) -> bool:
    """Whether a worker's report of a failure names a lack of device memory; a solution can write such a report."""
    return "out of memory" in message.lower().replace("_", " ")  # as torch and as the driver say it
