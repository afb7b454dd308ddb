"""Copies of a call's tensors, made before the call so that the caller may overwrite them at once.

On the CPU a copy is made where it is asked for. Of a CUDA tensor, first the caller's stream makes a
copy on the device (a large one the side stream makes straight from the tensor, and the caller's stream waits for it
there); then a side stream moves it into pinned memory, and the thread that writes waits for the
event. No call waits for the device, and no stream waits for the host.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Protocol

import attrs
import torch

RING_BYTES = 32 << 20
"""Pinned memory that copies pass through."""
_MOST_ON_DEVICE = 4 << 20
"""Bytes of one call that are copied on the device first; above that, the time that the caller's stream would
wait is not worth the memory, which an engine has given to its caches."""
_ALIGNMENT = 256


class Landing(Protocol):
    """Copies that are on their way to the CPU."""

    def wait(self) -> dict[str, torch.Tensor]:
        """The copies, when they have arrived; to be called once."""
        ...


@attrs.define(eq=False)
class Landed:
    """Copies that were made on the CPU."""

    tensors: dict[str, torch.Tensor]

    def wait(self) -> dict[str, torch.Tensor]:
        """They are there."""
        return self.tensors


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


class Ring:
    """Pinned memory that is given out in pieces, which come back in any order and are free again in the order given."""

    def __init__(self, size_bytes: int = RING_BYTES, *, is_pinned: bool = True) -> None:
        size = _aligned(size_bytes)
        self.memory = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=is_pinned)  # whatever the default
        self._lock = threading.Lock()
        self._given: deque[list[int]] = deque()
        """Pieces from the oldest on: where they begin and end, and whether they are in use."""

    def take(self, size_bytes: int) -> torch.Tensor | None:
        """A piece, or None if there is no room now."""
        size = _aligned(size_bytes)
        with self._lock:
            begin = self._place(size)
            if begin is None:
                return None
            self._given.append([begin, begin + size, 1])
        return self.memory[begin : begin + size_bytes]

    def give(self, piece: torch.Tensor) -> None:
        """Have a piece back."""
        begin = piece.data_ptr() - self.memory.data_ptr()
        with self._lock:
            for given in self._given:
                if given[0] == begin and given[2]:
                    given[2] = 0
                    break
            while self._given and not self._given[0][2]:
                self._given.popleft()

    def _place(self, size: int) -> int | None:
        """Where a piece fits: behind the newest one, or at the beginning again."""
        most = self.memory.numel()
        if not self._given:
            return 0 if size <= most else None
        oldest, newest = self._given[0][0], self._given[-1][1]
        if newest > oldest:
            if size <= most - newest:
                return newest
            return 0 if size <= oldest else None
        return newest if size <= oldest - newest else None


@attrs.frozen(eq=False)
class _OnTheWay:
    """Copies in pinned memory, or on their way there."""

    ring: Ring
    piece: torch.Tensor
    layout: tuple[tuple[str, int, torch.dtype, torch.Size], ...]
    arrived: torch.cuda.Event
    others: dict[str, torch.Tensor]
    """Copies of tensors on the CPU."""

    def wait(self) -> dict[str, torch.Tensor]:
        """Wait for the device, and move them out of the ring."""
        try:
            self.arrived.synchronize()
            landed = {name: self._tensor(begin, dtype, shape) for name, begin, dtype, shape in self.layout}
            return {**self.others, **landed}
        finally:
            self.ring.give(self.piece)

    def _tensor(self, begin: int, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
        size = dtype.itemsize * shape.numel()
        return self.piece[begin : begin + size].clone().view(dtype).view(shape)


@attrs.define(eq=False)
class Room:
    """Room for copies, taken before they are made; of those on a device, in pinned memory."""

    tensors: Mapping[str, torch.Tensor]
    ring: Ring | None = None
    piece: torch.Tensor | None = None
    layout: tuple[tuple[str, int, torch.dtype, torch.Size], ...] = ()


class Copier:
    """Copies tensors without making anybody wait."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin without locks, memory and streams, in a forked process."""
        self._lock = threading.Lock()
        self._ring: Ring | None = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def prepare(self) -> None:
        """Allocate pinned memory, which takes some milliseconds, and a stream for the current device."""
        self._prepared_ring()
        self._stream(torch.device("cuda", torch.cuda.current_device()))

    def room(self, tensors: Mapping[str, torch.Tensor]) -> Room | None:
        """Take room for copies; None if there is no pinned memory left for them now.

        Raises:
            ValueError: They are on several devices.
        """
        on_device = {name: tensor for name, tensor in tensors.items() if tensor.is_cuda}
        if not on_device:
            return Room(tensors)
        if len({tensor.device for tensor in on_device.values()}) > 1:
            raise ValueError("tensors on several devices")
        ring = self._prepared_ring()
        layout, size_bytes = _layout(on_device)
        if size_bytes > ring.memory.numel():
            ring = Ring(size_bytes)
        piece = ring.take(size_bytes)
        return None if piece is None else Room(tensors, ring, piece, layout)

    def give_up(self, room: Room) -> None:
        """Give back room that no copies will be made in."""
        if room.ring is not None and room.piece is not None:
            room.ring.give(room.piece)

    def copy(self, room: Room) -> Landing:
        """Make the copies; of tensors on a device, behind what the caller's current stream has to do."""
        if room.ring is None or room.piece is None:
            return Landed({name: _copied(tensor) for name, tensor in room.tensors.items()})
        try:
            copied = {name: _copied(tensor) for name, tensor in room.tensors.items() if not tensor.is_cuda}
            arrived = self._enqueue(room, room.piece)
        except BaseException:
            self.give_up(room)
            raise
        return _OnTheWay(room.ring, room.piece, room.layout, arrived, copied)

    def _enqueue(self, room: Room, piece: torch.Tensor) -> torch.cuda.Event:
        tensors = {name: room.tensors[name].detach() for name, *_ in room.layout}
        device = next(iter(tensors.values())).device
        side = self._stream(device)
        is_small = piece.numel() <= _MOST_ON_DEVICE
        with torch.cuda.device(device), torch.no_grad():
            caller = torch.cuda.current_stream(device)
            sources = {name: _copied(tensor) for name, tensor in tensors.items()} if is_small else tensors
            side.wait_stream(caller)
            with torch.cuda.stream(side):
                for name, begin, dtype, shape in room.layout:
                    source = sources[name].contiguous().reshape(-1).view(torch.uint8)
                    piece[begin : begin + dtype.itemsize * shape.numel()].copy_(source, non_blocking=True)
                arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                arrived.record(side)
            if is_small:
                for source in sources.values():
                    source.record_stream(side)
            else:
                caller.wait_stream(side)  # on the device: what the caller enqueues next comes behind the copy
        return arrived

    def _prepared_ring(self) -> Ring:
        with self._lock:
            if self._ring is None:
                self._ring = Ring()
            return self._ring

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        with self._lock:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            return self._streams[device]


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


def _layout(tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[tuple[str, int, torch.dtype, torch.Size], ...], int]:
    """Where each tensor lies in a piece, and how many bytes that takes."""
    found, end = [], 0
    for name, tensor in tensors.items():
        begin = _aligned(end)
        found.append((name, begin, tensor.dtype, tensor.shape))
        end = begin + tensor.dtype.itemsize * tensor.numel()
    return tuple(found), max(end, 1)
