"""Occupancy of a kernel by its registers and shared memory.

Source: the tables of compute capabilities in NVIDIA's CUDA C++ Programming Guide.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

_REGISTERS = 65536
_REGISTER_GRAIN = 256
"""Registers of a warp are allocated in such units."""
_SHARED_GRAIN, _SHARED_RESERVED = 128, 1024
"""Bytes of shared memory of a block: the unit of allocation, and the part that the system takes."""
_WARP = 32


@attrs.frozen
class Limits:
    """The limits of a multiprocessor."""

    warps: int
    blocks: int
    shared_bytes: int


LIMITS: Mapping[str, Limits] = {
    "80": Limits(64, 32, 164 << 10),
    "86": Limits(48, 16, 100 << 10),
    "87": Limits(48, 16, 164 << 10),
    "89": Limits(48, 24, 100 << 10),
    "90": Limits(64, 32, 228 << 10),
    "100": Limits(64, 32, 228 << 10),
    "103": Limits(64, 32, 228 << 10),
    "120": Limits(48, 24, 100 << 10),
}
"""Limits of a multiprocessor by compute capability."""


def occupancy(architecture: str, registers: int, shared_bytes: int, threads: int) -> float | None:
    """The share of a multiprocessor's warps that can be resident; None for an unknown architecture.

    Args:
        architecture: Such as ``sm_90a``.
        registers: Of a thread.
        shared_bytes: Of a block.
        threads: Of a block.
    """
    limits = LIMITS.get(architecture.removeprefix("sm_").rstrip("af"))
    if limits is None:
        return None
    warps = -(-threads // _WARP)
    grain = -(-max(registers, 1) * _WARP // _REGISTER_GRAIN) * _REGISTER_GRAIN
    shared = -(-(shared_bytes + _SHARED_RESERVED) // _SHARED_GRAIN) * _SHARED_GRAIN
    by_registers = _REGISTERS // grain // warps
    blocks = min(limits.blocks, limits.warps // warps, by_registers, limits.shared_bytes // shared)
    return blocks * warps / limits.warps
