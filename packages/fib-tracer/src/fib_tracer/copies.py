"""Copies of a call's tensors, made before the call so that the caller may overwrite them at once.

`Copier.reserve` takes memory, `Copier.copy` enqueues the copies, and the storage thread waits for the `Copies`.

CPU tensors are copied immediately. A small CUDA tensor is first copied on the device by the caller's stream, and a side
stream moves that copy to pinned memory. A large one is copied by the side stream directly, and the caller's stream
waits for it on the device. The storage thread waits for an event. No call waits for the device, and no stream for the
host.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import TypeAlias

import attrs
import torch

RING_BYTES = 32 << 20
"""Pinned memory that copies pass through."""
_MAX_STAGED_BYTES = 4 << 20
"""Calls with at most this many bytes are copied on the device first. Above that, the time that the caller's stream
would wait is not worth the memory, which an engine has given to its caches."""
_ALIGNMENT = 256

_Layout: TypeAlias = "tuple[tuple[str, int, torch.dtype, torch.Size], ...]"
"""Name, offset in a block of pinned memory, dtype and shape of each tensor."""


class ByteBudget:
    """Bytes of copies in memory: reserved before a copy is made, released when it is stored or dropped."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._reserved = 0
        self._lock = threading.Lock()

    @property
    def reserved_bytes(self) -> int:
        """Bytes in memory now."""
        return self._reserved

    def reserve(self, size_bytes: int) -> bool:
        """Reserve bytes; False if fewer are left."""
        with self._lock:
            if self._reserved + size_bytes > self.size_bytes:
                return False
            self._reserved += size_bytes
            return True

    def release(self, size_bytes: int) -> None:
        """Release reserved bytes."""
        with self._lock:
            self._reserved -= size_bytes

    def forget(self) -> None:
        """Start with nothing reserved, in a forked child; a thread of the parent process may hold the lock."""
        self._reserved = 0
        self._lock = threading.Lock()


class PinnedRing:
    """A ring buffer of pinned memory. Blocks are freed in any order and become available in allocation order."""

    def __init__(self, size_bytes: int = RING_BYTES, *, is_pinned: bool = True) -> None:
        size = _aligned(size_bytes)
        # the device is explicit because torch.set_default_device may say otherwise
        self.memory = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=is_pinned)
        self._lock = threading.Lock()
        self._blocks: deque[list[int]] = deque()
        """Blocks from the oldest on: begin, end, and whether they are in use."""

    def allocate(self, size_bytes: int) -> torch.Tensor | None:
        """A block, or None if none is free now."""
        size = _aligned(size_bytes)
        with self._lock:
            begin = self._free_offset(size)
            if begin is None:
                return None
            self._blocks.append([begin, begin + size, 1])
        return self.memory[begin : begin + size_bytes]

    def free(self, block: torch.Tensor) -> None:
        """Free a block."""
        begin = block.data_ptr() - self.memory.data_ptr()
        with self._lock:
            for known in self._blocks:
                if known[0] == begin and known[2]:
                    known[2] = 0
                    break
            while self._blocks and not self._blocks[0][2]:
                self._blocks.popleft()

    def _free_offset(self, size: int) -> int | None:
        """Offset at which a block fits: behind the newest block, or at the beginning again."""
        capacity = self.memory.numel()
        if not self._blocks:
            return 0 if size <= capacity else None
        oldest, newest = self._blocks[0][0], self._blocks[-1][1]
        if newest > oldest:
            if size <= capacity - newest:
                return newest
            return 0 if size <= oldest else None
        return newest if size <= oldest - newest else None


@attrs.define(eq=False)
class Reservation:
    """Memory for the copies of one call: bytes of the budget and, for CUDA tensors, a block of pinned memory."""

    tensors: Mapping[str, torch.Tensor]
    size_bytes: int
    ring: PinnedRing | None = None
    block: torch.Tensor | None = None
    layout: _Layout = ()


@attrs.frozen(eq=False)
class Copies:
    """Copies of a call's tensors; those of CUDA tensors may still be on their way through a block of pinned memory."""

    finished: dict[str, torch.Tensor]
    """Copies of CPU tensors."""
    reservation: Reservation
    arrival: torch.cuda.Event | None = None
    """Event after which the others are in the block; None if there are none."""

    def wait(self) -> dict[str, torch.Tensor]:
        """Wait for the device, copy the tensors out of the block, and free it; called once."""
        ring, block = self.reservation.ring, self.reservation.block
        if self.arrival is None or ring is None or block is None:
            return self.finished
        try:
            self.arrival.synchronize()
            taken = {name: _taken(block, begin, dtype, shape) for name, begin, dtype, shape in self.reservation.layout}
            return {**self.finished, **taken}
        finally:
            ring.free(block)


def _taken(block: torch.Tensor, begin: int, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """A tensor out of a block of bytes."""
    return block[begin : begin + dtype.itemsize * shape.numel()].clone().view(dtype).view(shape)


class Copier:
    """Copies tensors without blocking the caller."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._ring: PinnedRing | None = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def prepare(self) -> None:
        """Allocate pinned memory, which takes some milliseconds, and a stream for the current device."""
        self._shared_ring()
        self._stream(torch.device("cuda", torch.cuda.current_device()))

    def reserve(self, tensors: Mapping[str, torch.Tensor], overhead_bytes: int) -> Reservation | None:
        """Reserve memory for copies; None if the budget or the pinned memory is used up now.

        Raises:
            ValueError: They are on several devices.
        """
        size_bytes = overhead_bytes + sum(tensor.nbytes for tensor in tensors.values())
        if not self._budget.reserve(size_bytes):
            return None
        try:
            reservation = self._with_block(tensors, size_bytes)
        except BaseException:
            self._budget.release(size_bytes)
            raise
        if reservation is None:
            self._budget.release(size_bytes)
        return reservation

    def _with_block(self, tensors: Mapping[str, torch.Tensor], size_bytes: int) -> Reservation | None:
        on_device = {name: tensor for name, tensor in tensors.items() if tensor.is_cuda}
        if not on_device:
            return Reservation(tensors, size_bytes)
        if len({tensor.device for tensor in on_device.values()}) > 1:
            raise ValueError("tensors on several devices")
        ring = self._shared_ring()
        layout, block_bytes = _layout(on_device)
        if block_bytes > ring.memory.numel():
            ring = PinnedRing(block_bytes)
        block = ring.allocate(block_bytes)
        return None if block is None else Reservation(tensors, size_bytes, ring, block, layout)

    def cancel(self, reservation: Reservation) -> None:
        """Release a reservation that is not used."""
        if reservation.ring is not None and reservation.block is not None:
            reservation.ring.free(reservation.block)
        self._budget.release(reservation.size_bytes)

    def copy(self, reservation: Reservation) -> Copies:
        """Make the copies; those of CUDA tensors run after the work of the caller's current stream.

        The reservation is cancelled if this raises. Otherwise the caller releases its bytes of the budget.
        """
        try:
            on_cpu = {name: _copied(tensor) for name, tensor in reservation.tensors.items() if not tensor.is_cuda}
            block = reservation.block
            return Copies(on_cpu, reservation, None if block is None else self._enqueue(reservation, block))
        except BaseException:
            self.cancel(reservation)
            raise

    def _enqueue(self, reservation: Reservation, block: torch.Tensor) -> torch.cuda.Event:
        tensors = {name: reservation.tensors[name].detach() for name, *_ in reservation.layout}
        device = next(iter(tensors.values())).device
        side = self._stream(device)
        is_staged = block.numel() <= _MAX_STAGED_BYTES
        with torch.cuda.device(device), torch.no_grad():
            caller = torch.cuda.current_stream(device)
            sources = {name: _copied(tensor) for name, tensor in tensors.items()} if is_staged else tensors
            side.wait_stream(caller)
            with torch.cuda.stream(side):
                for name, begin, dtype, shape in reservation.layout:
                    source = sources[name].contiguous().reshape(-1).view(torch.uint8)
                    block[begin : begin + dtype.itemsize * shape.numel()].copy_(source, non_blocking=True)
                finished = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                finished.record(side)
            if is_staged:
                for source in sources.values():
                    source.record_stream(side)
            else:
                caller.wait_stream(side)  # on the device: later work of the caller runs after the copy
        return finished

    def _shared_ring(self) -> PinnedRing:
        with self._lock:
            if self._ring is None:
                self._ring = PinnedRing()
            return self._ring

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        with self._lock:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            return self._streams[device]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


def _layout(tensors: Mapping[str, torch.Tensor]) -> tuple[_Layout, int]:
    """Offset of each tensor in a block, and the block's size in bytes."""
    placed, end = [], 0
    for name, tensor in tensors.items():
        begin = _aligned(end)
        placed.append((name, begin, tensor.dtype, tensor.shape))
        end = begin + tensor.dtype.itemsize * tensor.numel()
    return tuple(placed), max(end, 1)
