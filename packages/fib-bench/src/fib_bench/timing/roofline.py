"""Roofline: the least time of a call, by the bytes that it must move and the operations that it must do (`work`).

A verdict is made by theoretical peaks, which nothing exceeds; reports show the share of what the device attains in
practice, by peaks that are measured once and kept in the cache.

Source: the roofline model (Williams, Waterman and Patterson, 2009). Operations per cycle and
multiprocessor are those of NVIDIA's architecture white papers (dense, without sparsity).
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress

import attrs
import torch
from fib_schema import get_fib_cache_path
from fib_schema.files import atomic_write, private_folder, read_private

from .cuda import event_ms
from .work import Work

_HALF_OPERATIONS_PER_CYCLE = {
    (8, 0): 2048, (8, 6): 1024, (8, 7): 1024, (8, 9): 1024, (9, 0): 4096, (10, 0): 8192, (10, 3): 8192, (12, 0): 1024,
}  # fmt: skip
"""Operations per cycle of one multiprocessor with two-byte operands, by compute capability."""
_RATE_BY_BYTES = {0.5: 4.0, 1.0: 2.0, 2.0: 1.0, 4.0: 0.5, 8.0: 0.125}
"""Relative to that, by the size of an operand; four bytes count as TF32."""
_MARGIN = 0.97
_GRAIN_MS = 0.0005  # uncertainty of the clock's own cost
_MEASURED_BYTES = 2 << 30
_MEASURED_SIDE = 8192
_WARM_UP_CALLS, _TIMED_CALLS = 3, 20
_CACHE_VERSION = 4


@attrs.frozen
class Peaks:
    """Upper bounds of the speed of a device."""

    bytes_per_second: float
    half_operations_per_second: float | None
    """With two-byte operands; None if unknown."""
    l2_bytes: int
    """Size of the L2 cache: written bytes that may still be there when a call has ended."""

    def least_ms(self, work: Work) -> float:
        """The time below which no call can be."""
        moved = work.read_bytes + max(work.written_bytes - self.l2_bytes, 0)
        rate = self.half_operations_per_second
        done = work.operations / (rate * _RATE_BY_BYTES[work.operand_bytes]) if rate else 0.0
        return 1e3 * max(moved / self.bytes_per_second, done)

    def attainable_ms(self, work: Work) -> float:
        """The time in which a perfect kernel would do it, written bytes included."""
        return attrs.evolve(self, l2_bytes=0).least_ms(work)


@attrs.frozen
class SpeedOfLight:
    """The peaks of one device.

    Args:
        theoretical: What nothing exceeds; None where that is unknown, as on the CPU.
        measured: What was attained.
    """

    theoretical: Peaks | None
    measured: Peaks | None

    def objection(self, work: Work | None, latency_ms: float) -> str:
        """Reason that a latency cannot be true; None if it can."""
        if work is None or not work.is_certain or self.theoretical is None:
            return ""
        least = self.theoretical.least_ms(work)
        if latency_ms >= _MARGIN * least - _GRAIN_MS:
            return ""
        return (
            f"a latency of {latency_ms:.5f} ms is impossible: reading {work.read_bytes} bytes, writing "
            f"{work.written_bytes} and doing {work.operations} operations takes this device {least:.5f} ms at least "
            f"({self.theoretical.bytes_per_second / 1e12:.2f} TB/s)"
        )

    def to_extra(self, work: Work | None, latency_ms: float) -> dict[str, float]:
        """The fields of a trace: the achieved speed and its share of the attainable speed."""
        if work is None or latency_ms <= 0:
            return {}
        moved = work.read_bytes + work.written_bytes
        extra = {"bytes": moved, "achieved_gb_per_s": round(moved / latency_ms / 1e6, 1)}
        if work.operations:
            extra |= {"operations": work.operations}
            extra |= {"achieved_tflop_per_s": round(work.operations / latency_ms / 1e9, 2)}
        if self.measured is not None:
            extra["attainable_fraction"] = round(self.measured.attainable_ms(work) / latency_ms, 4)
        return extra


def speed_of_light_of(
    device: torch.device, alone: Callable[[], AbstractContextManager[None]] = nullcontext
) -> SpeedOfLight:
    """The peaks of a device; measures them if that has not been done yet, which takes seconds.

    Args:
        device: Which.
        alone: Gives a block in which nobody else uses the device; peaks are measured in it.
    """
    if device.type == "cpu":
        return SpeedOfLight(None, None)
    theoretical = theoretical_peaks(device)
    name = f"peaks-v{_CACHE_VERSION}-{torch.cuda.get_device_properties(device).uuid}.json"
    measured = _load(name) or _measure_once(device, name, alone)
    peaks = Peaks(measured["bytes_per_second"], measured["half_operations_per_second"], theoretical.l2_bytes)
    return SpeedOfLight(theoretical, peaks)


def theoretical_peaks(device: torch.device) -> Peaks:
    """Upper bounds from the clocks and widths of a CUDA device."""
    from cuda.bindings import driver

    attributes = driver.CUdevice_attribute

    def ask(attribute: object) -> int:
        _, value = driver.cuDeviceGetAttribute(attribute, device.index or 0)
        return int(value)

    memory_hz = 1e3 * ask(attributes.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)
    width_bytes = ask(attributes.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) / 8
    clock_hz = 1e3 * ask(attributes.CU_DEVICE_ATTRIBUTE_CLOCK_RATE)
    properties = torch.cuda.get_device_properties(device)
    per_cycle = _HALF_OPERATIONS_PER_CYCLE.get((properties.major, properties.minor))
    rate = per_cycle * properties.multi_processor_count * clock_hz if per_cycle else None
    bytes_per_second = 2 * memory_hz * width_bytes or math.inf  # a driver that does not report it sets no floor
    return Peaks(bytes_per_second, rate or None, properties.L2_cache_size)


def _measure_once(
    device: torch.device, name: str, alone: Callable[[], AbstractContextManager[None]]
) -> dict[str, float]:
    """Measure and cache, unless another judge has done so while this one waited for the device."""
    with alone():
        if (known := _load(name)) is not None:
            return known
        measured = _measure(device)
        with suppress(OSError):  # a full or unsafe cache: the next run measures again
            folder = private_folder(get_fib_cache_path() / "fib-bench")
            atomic_write(folder / name, json.dumps(measured).encode(), mode=0o600)
        torch.cuda.empty_cache()  # several GiB, which torch would keep
    return measured


def _load(name: str) -> dict[str, float] | None:
    """The cached numbers, or None if there are none that can be used."""
    try:
        known = json.loads(read_private(private_folder(get_fib_cache_path() / "fib-bench") / name))
        return {name: float(known[name]) for name in ("bytes_per_second", "half_operations_per_second")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _measure(device: torch.device) -> dict[str, float]:
    """The fastest of several ways to stream through memory, and a matrix product on random numbers.

    Bytes are those read and written: a copy reached 2.8 TB/s where a kernel that computes reached 3.8.
    """
    a = torch.randn(_MEASURED_SIDE, _MEASURED_SIDE, device=device).to(torch.bfloat16)
    source = torch.ones(_MEASURED_BYTES // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    streams: list[tuple[Callable[[], object], int]] = [
        (lambda: target.copy_(source), 2),
        (lambda: torch.mul(source, 2.0, out=target), 2),
        (lambda: torch.add(source, source, out=target), 2),
        (source.sum, 1),
    ]
    return {
        "bytes_per_second": max(times * _MEASURED_BYTES / _seconds(stream, device) for stream, times in streams),
        "half_operations_per_second": 2 * _MEASURED_SIDE**3 / _seconds(lambda: torch.mm(a, a), device),
    }


def _seconds(function: Callable[[], object], device: torch.device) -> float:
    """The median time of a call."""
    taken = [event_ms(function, device) for _ in range(_WARM_UP_CALLS + _TIMED_CALLS)]
    return statistics.median(taken[_WARM_UP_CALLS:]) / 1e3
