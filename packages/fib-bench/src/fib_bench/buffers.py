"""Arenas: dedicated shared allocations that hold the tensors of one input set.

The judge allocates an arena, a worker maps it. One allocation holds several tensors at aligned
offsets, so that a set of inputs travels as one handle and nothing else lies beside it. On the CPU
the allocation is an anonymous memory file.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import zlib
from collections.abc import Sequence

import attrs
import torch
from fib_compile.device import torch_dtype

from .wire import TensorSlot

_SIZE_IS_FINAL = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_ALIGNMENT = 256  # what CUDA allocations guarantee, and more than any CPU vector needs


@attrs.frozen
class TensorLayout:
    """Element type and shape of a tensor to allocate."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of its elements."""
        return math.prod(self.shape) * torch_dtype(self.dtype).itemsize


def place(layouts: Sequence[TensorLayout]) -> tuple[tuple[TensorSlot, ...], int]:
    """Lay tensors out one behind the other; returns their slots and the bytes needed."""
    slots, offset = [], 0
    for layout in layouts:
        slots.append(TensorSlot(layout.dtype, layout.shape, offset))
        offset += -(-layout.size_bytes // _ALIGNMENT) * _ALIGNMENT
    return tuple(slots), max(offset, _ALIGNMENT)


class Arena:
    """A shared allocation and the tensors in it.

    Args:
        descriptor: A memory file that the arena takes over.
        size_bytes: How much of it to map.
    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self.descriptor = descriptor
        self.size_bytes = size_bytes
        self._map = mmap.mmap(descriptor, size_bytes)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    @classmethod
    def allocate(cls, size_bytes: int) -> Arena:
        """A new arena, filled with zeros. Its size is sealed: reading a truncated map is a SIGBUS."""
        descriptor = os.memfd_create("fib-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SIZE_IS_FINAL)
        return cls(descriptor, size_bytes)

    @classmethod
    def attach(cls, descriptor: int) -> Arena:
        """Map an arena whose descriptor came from the judge."""
        return cls(descriptor, os.fstat(descriptor).st_size)

    def tensor(self, slot: TensorSlot) -> torch.Tensor:
        """The tensor at a slot; it shares the arena's memory."""
        dtype = torch_dtype(slot.dtype)
        end = slot.offset + math.prod(slot.shape) * dtype.itemsize
        return self._bytes[slot.offset : end].view(dtype).view(slot.shape)

    def checksum(self) -> int:
        """A checksum of all bytes, to notice writes."""
        return zlib.crc32(self._map)

    def overwrite(self, other: Arena) -> None:
        """Copy all bytes of an arena of the same size, those between tensors too."""
        self._bytes.copy_(other._bytes)

    def fill(self, pattern: int) -> None:
        """Overwrite all bytes with one value."""
        self._bytes.fill_(pattern)

    def close(self) -> None:
        """Let go of the descriptor; the memory goes when the last tensor does."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
