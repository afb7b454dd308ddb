"""CUDA: the L2 cache of a device, and a profile of the kernels of a call as a cross-check of the latency."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_BUFFER_BYTES = 8 << 20
_FLUSHES: dict[torch.device, Callable[[], object]] = {}


class CannotCapture(Exception):
    """A function could not be captured into a CUDA graph; the process should not be used any more."""


def set_no_lines_aside() -> int:
    """Give the whole L2 cache back to lines that a flush overwrites; some devices set a part aside by default.

    Returns:
        The bytes that stay set aside where the device does not let go of them.
    """
    from cuda.bindings import driver

    driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0)
    return persisting_bytes()


def persisting_bytes() -> int:
    """Bytes of the L2 cache that are set aside for persisting lines, which a flush does not evict."""
    from cuda.bindings import driver

    status, size = driver.cuCtxGetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
    return int(size) if status.value == 0 else 0


def flush_of(device: torch.device) -> Callable[[], object]:
    """The function that overwrites the device's L2 cache."""
    if device not in _FLUSHES:
        size_bytes = 2 * torch.cuda.get_device_properties(device).L2_cache_size
        buffer = torch.empty(max(size_bytes, 1 << 20), dtype=torch.uint8, device=device)
        _FLUSHES[device] = buffer.zero_
    return _FLUSHES[device]


def event_ms(function: Callable[[], object], device: torch.device) -> float:
    """The milliseconds of one call by events of the device, right after the L2 cache was overwritten."""
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        flush_of(device)()
        start.record()
        function()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))


def kernels_of(function: Callable[[], Any], device: torch.device) -> tuple[tuple[str, float], ...]:
    """The kernels of one call in the order of their start, each with its duration in nanoseconds.

    The L2 cache is overwritten before, as for a timed call. Empty on the CPU and where the extra
    ``cupti`` is not installed.
    """
    if device.type == "cpu":
        return ()
    try:
        from cupti import cupti
    except ImportError:
        return ()
    flush = flush_of(device)
    records: list[tuple[int, str, float]] = []

    def take(activities: Any) -> None:
        for activity in activities:
            if activity.kind == cupti.ActivityKind.CONCURRENT_KERNEL:
                records.append((activity.start, activity.name, float(activity.end - activity.start)))

    flush()
    torch.cuda.synchronize(device)
    cupti.activity_register_callbacks(lambda: (_BUFFER_BYTES, 0), take)
    cupti.activity_enable(cupti.ActivityKind.CONCURRENT_KERNEL)
    try:
        function()
        torch.cuda.synchronize(device)
        cupti.activity_flush_all(1)
    finally:
        cupti.activity_disable(cupti.ActivityKind.CONCURRENT_KERNEL)
        cupti.finalize()
    return tuple((name, duration) for _, name, duration in sorted(records))
