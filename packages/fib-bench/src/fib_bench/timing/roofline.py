"""Roofline: the least time of a call, by the bytes that it must move and the operations that it must do (`work`).

Peaks are theoretical, so that nothing exceeds them: a verdict and the share that reports show are made by the same.

Source: the roofline model (Williams, Waterman and Patterson, 2009). Operations per cycle and
multiprocessor are those of NVIDIA's architecture white papers (dense, without sparsity).
"""

from __future__ import annotations

import math

import attrs
import torch

from .work import Work

_HALF_OPERATIONS_PER_CYCLE = {
    (8, 0): 2048, (8, 6): 1024, (8, 7): 1024, (8, 9): 1024, (9, 0): 4096, (10, 0): 8192, (10, 3): 8192, (12, 0): 1024,
}  # fmt: skip
"""Operations per cycle of one multiprocessor with two-byte operands, by compute capability."""
_RATE_BY_BYTES = {0.5: 4.0, 1.0: 2.0, 2.0: 1.0, 4.0: 0.5, 8.0: 0.125}
"""Relative to that, by the size of an operand; four bytes count as TF32."""
_MARGIN = 0.97
_GRAIN_MS = 0.0005  # uncertainty of the clock's own cost


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

    def objection(self, work: Work, latency_ms: float) -> str:
        """Reason that a latency cannot be true; empty if it can."""
        least = self.least_ms(work)
        if not work.is_certain or latency_ms >= _MARGIN * least - _GRAIN_MS:
            return ""
        return (
            f"a latency of {latency_ms:.5f} ms is impossible: reading {work.read_bytes} bytes, writing "
            f"{work.written_bytes} and doing {work.operations} operations takes this device {least:.5f} ms at least "
            f"({self.bytes_per_second / 1e12:.2f} TB/s)"
        )


def speed_fields(peaks: Peaks | None, work: Work | None, latency_ms: float) -> dict[str, float]:
    """The fields of a trace: the achieved speed and, of a device with known peaks, its share of the attainable one."""
    if work is None or latency_ms <= 0:
        return {}
    moved = work.read_bytes + work.written_bytes
    extra = {"bytes": moved, "achieved_gb_per_s": round(moved / latency_ms / 1e6, 1)}
    if work.operations:
        extra |= {"operations": work.operations}
        extra |= {"achieved_tflop_per_s": round(work.operations / latency_ms / 1e9, 2)}
    if peaks is not None and (least_ms := peaks.attainable_ms(work)):
        extra["attainable_fraction"] = round(least_ms / latency_ms, 4)
    return extra


def theoretical_peaks(device: torch.device) -> Peaks | None:
    """Upper bounds from the clocks and widths of a CUDA device; None on the CPU."""
    if device.type == "cpu":
        return None
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
