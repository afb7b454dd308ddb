"""Kernel profile: the kernels that a call launches and their durations by CUPTI, as a cross-check of the latency."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_BUFFER_BYTES = 8 << 20


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
    from .cuda import flush_of

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
