"""Arenas: dedicated shared allocations for the inputs or the outputs of several calls.

The judge allocates an arena, a worker maps it. An arena holds equal *slots* one behind the other;
a slot holds the tensors of one call at aligned offsets. So everything that a worker needs travels
as two handles, and nothing else lies beside it: CUDA exports whole allocations, and expected
outputs must never be in one. On the CPU an arena is an anonymous memory file.

Every call of a timed pass has a slot of its own, with its own addresses and values. Its outputs are poisoned
before the pass and stay in place afterwards for the comparison.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Self

import attrs
import msgspec
import torch
from fib_compile.device import torch_dtype
from fib_schema import Definition, Workload
from fib_schema.strides import Strides, normalized_strides, storage_elements, workload_strides

from ..checking.comparison import dtype_name
from ..inputs.generation import Value
from .messages import BASES, Argument, Bind, Layout, SharedMemory, TensorSlot

_SIZE_IS_FINAL = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_ALIGNMENT = 256  # the alignment of CUDA allocations, and more than any CPU vector needs
_IPC_HANDLE_BYTES = 64  # CU_IPC_HANDLE_SIZE
_CUDA_GRANULE = 2 << 20  # smaller CUDA allocations share a block, and a handle exports the whole block


def place(tensors: Sequence[TensorSlot]) -> tuple[tuple[TensorSlot, ...], int]:
    """Lay tensors out one behind the other, wherever they were; returns them and the bytes needed."""
    slots, offset = [], 0
    for tensor in tensors:
        slots.append(msgspec.structs.replace(tensor, offset=offset))
        offset += _round_up(_element_type_and_bytes(tensor)[1], _ALIGNMENT)
    return tuple(slots), max(offset, _ALIGNMENT)


def tensor_in(memory: torch.Tensor, slot: TensorSlot) -> torch.Tensor:
    """The tensor at a place in ``[bytes]``, or in each slot of ``[slots, bytes]``; it shares the memory."""
    dtype, flat = _element_type_and_bytes(slot)[0], bytes_in(memory, slot)
    if not flat.numel():  # a view of no bytes can have any shape
        return memory.new_empty((*memory.shape[:-1], *slot.shape), dtype=dtype)
    elements = flat.view(dtype)
    if slot.strides is None:
        return elements.view((*memory.shape[:-1], *slot.shape))
    shape, strides = (*memory.shape[:-1], *slot.shape), (*elements.stride()[:-1], *slot.strides)
    return elements.as_strided(shape, strides, elements.storage_offset())


def bytes_in(memory: torch.Tensor, slot: TensorSlot) -> torch.Tensor:
    """The bytes of a tensor at a place in ``[bytes]`` or ``[slots, bytes]``, those between its elements included."""
    _, size_bytes = _element_type_and_bytes(slot)
    return memory[..., slot.offset : slot.offset + size_bytes]


@lru_cache(maxsize=1024)  # an evaluation finds the same few tensors in memory some hundred times
def _element_type_and_bytes(slot: TensorSlot) -> tuple[torch.dtype, int]:
    """The dtype, and the bytes from the first to the last element."""
    dtype = torch_dtype(slot.dtype)
    return dtype, storage_elements(slot.shape, slot.strides) * dtype.itemsize


GAP = 0xFF
"""The byte between the elements of strided inputs: NaN in floating formats, -1 in integers."""


@attrs.frozen
class CallLayout:
    """The layout of the tensors of one call, by name."""

    message: Layout
    inputs: Mapping[str, TensorSlot]
    """The tensors among the inputs."""
    outputs: Mapping[str, TensorSlot]
    input_bytes: int
    output_bytes: int

    @property
    def size_bytes(self) -> int:
        """Inputs and outputs of one call."""
        return self.input_bytes + self.output_bytes

    def pack(self, values: Mapping[str, Value], device: torch.device) -> torch.Tensor:
        """Lay input tensors out like a slot, ``[bytes]``, with `GAP` between the elements of strided ones."""
        memory = torch.zeros(self.input_bytes, dtype=torch.uint8, device=device)
        for name, slot in self.inputs.items():
            value = values[name]
            assert isinstance(value, torch.Tensor)
            if slot.strides is not None:
                bytes_in(memory, slot).fill_(GAP)
            tensor_in(memory, slot).copy_(value)
        return memory

    @property
    def strides(self) -> Mapping[str, Strides]:
        """The strides of the inputs that are not contiguous."""
        return {name: slot.strides for name, slot in self.inputs.items() if slot.strides is not None}

    def input_tensors(self, memory: torch.Tensor) -> dict[str, torch.Tensor]:
        """The input tensors in memory laid out like one slot, or like all of them."""
        return {name: tensor_in(memory, slot) for name, slot in self.inputs.items()}

    def differing_inputs(self, one: torch.Tensor, other: torch.Tensor) -> list[str]:
        """The names of the inputs whose bytes differ between memory laid out like one slot, or like several."""
        places = self.inputs.items()
        return [name for name, slot in places if not torch.equal(bytes_in(one, slot), bytes_in(other, slot))]

    def output_tensors(self, memory: torch.Tensor) -> dict[str, torch.Tensor]:
        """The output tensors in memory laid out like one slot, or like all of them."""
        return {name: tensor_in(memory, slot) for name, slot in self.outputs.items()}


def layout_of(definition: Definition, axes: Mapping[str, int], values: Mapping[str, Value]) -> CallLayout:
    """Lay the inputs and outputs of a call out; scalars and absent inputs travel in the message."""
    tensors = {name: _described(value) for name, value in values.items() if isinstance(value, torch.Tensor)}
    placed, input_bytes = place(list(tensors.values()))
    inputs = dict(zip(tensors, placed, strict=True))
    described: list[Argument] = [
        inputs[name] if isinstance(value, torch.Tensor) else value for name, value in values.items()
    ]
    outputs, output_bytes = place(_output_layouts(definition, axes))
    named = dict(zip(definition.outputs, outputs, strict=True))
    return CallLayout(Layout(tuple(described), outputs), inputs, named, input_bytes, output_bytes)


def _described(tensor: torch.Tensor) -> TensorSlot:
    shape = tuple(tensor.shape)
    return TensorSlot(dtype_name(tensor), shape, strides=normalized_strides(shape, tensor.stride()))


def call_bytes(definition: Definition, workload: Workload) -> int:
    """Bytes of the inputs and outputs of one call; `AxisError` or `InvalidField` if the workload is invalid."""
    shapes, strides = definition.get_input_shapes(workload.axes), workload_strides(definition, workload)
    items = zip(definition.inputs.items(), shapes, strict=True)
    inputs = [TensorSlot(s.dtype, shape, 0, strides.get(name)) for (name, s), shape in items if shape is not None]
    return place(inputs)[1] + place(_output_layouts(definition, workload.axes))[1]


def _output_layouts(definition: Definition, axes: Mapping[str, int]) -> list[TensorSlot]:
    """A place for every output; a scalar's is a tensor of no dimension."""
    shapes = definition.get_output_shapes(axes)
    specs = definition.outputs.values()
    return [TensorSlot(spec.dtype, shape or ()) for spec, shape in zip(specs, shapes, strict=True)]


class Arena:
    """A shared allocation.

    `memory` is all its bytes, `descriptor` -1 on a CUDA device. No tensor in it may be used after it was released.
    """

    def __init__(self, memory: torch.Tensor, handle: SharedMemory, descriptor: int, release: Any = None) -> None:
        self.memory = memory
        self.handle = handle
        self.descriptor = descriptor
        self._release = release

    @classmethod
    def allocate(cls, size_bytes: int, device: torch.device) -> Arena:
        """A new arena."""
        return _allocate_on_host(size_bytes) if device.type == "cpu" else _allocate_on_cuda(size_bytes, device)

    @classmethod
    def attach(cls, handle: SharedMemory, descriptor: int, device: torch.device) -> Arena:
        """Map an arena of another process; takes the descriptor over."""
        return _attach_on_host(handle, descriptor) if device.type == "cpu" else _attach_on_cuda(handle, device)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The file descriptors that travel with the handle."""
        return () if self.descriptor < 0 else (self.descriptor,)

    def slots(self, count: int) -> torch.Tensor:
        """The memory as equal slots: ``[count, bytes]``."""
        stride = self.memory.numel() // count // _ALIGNMENT * _ALIGNMENT
        return self.memory[: count * stride].view(count, stride)

    def close_descriptor(self) -> None:
        """Let go of the descriptor of memory that stays mapped."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def close(self) -> None:
        """Let go of it; on the CPU the memory goes when the last tensor does."""
        self.close_descriptor()
        if self._release is not None:
            self._release()
            self._release = None


def _allocate_on_host(size_bytes: int) -> Arena:
    """Its size is sealed: reading a map that somebody has truncated is a SIGBUS."""
    descriptor = os.memfd_create("fib-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size_bytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SIZE_IS_FINAL)
    return _attach_on_host(SharedMemory(size_bytes, b""), descriptor)


def _attach_on_host(handle: SharedMemory, descriptor: int) -> Arena:
    memory = torch.frombuffer(mmap.mmap(descriptor, handle.size_bytes), dtype=torch.uint8)
    return Arena(memory, handle, descriptor)


def _allocate_on_cuda(size_bytes: int, device: torch.device) -> Arena:
    from cuda.bindings import driver

    torch.cuda.synchronize(device)  # makes the device's context current here
    size_bytes = _round_up(size_bytes, _CUDA_GRANULE)
    try:
        (pointer,) = _checked(driver.cuMemAlloc(size_bytes))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()  # torch may hold freed memory
        (pointer,) = _checked(driver.cuMemAlloc(size_bytes))
    (handle,) = _checked(driver.cuIpcGetMemHandle(pointer))

    def release() -> None:
        _checked(driver.cuMemFree(pointer))

    shared = SharedMemory(size_bytes, bytes(ipc_handle_bytes(handle)))
    return Arena(_cuda_bytes(int(pointer), size_bytes, device), shared, -1, release)


def _attach_on_cuda(handle: SharedMemory, device: torch.device) -> Arena:
    from cuda.bindings import driver

    torch.cuda.synchronize(device)
    ipc = driver.CUipcMemHandle()
    ipc_handle_bytes(ipc)[:] = list(handle.ipc_handle)
    lazy = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    (pointer,) = _checked(driver.cuIpcOpenMemHandle(ipc, lazy.value))

    def release() -> None:
        torch.cuda.synchronize(device)
        _checked(driver.cuIpcCloseMemHandle(pointer))

    return Arena(_cuda_bytes(int(pointer), handle.size_bytes, device), handle, -1, release)


class Slots:
    """Slots for `count` calls, shared with one worker.

    Functions that are compared read the same memory, because the addresses of inputs shift a latency by some percent:
    `shares_inputs_with` has the inputs, and outlives these slots. Outputs are never shared.
    """

    def __init__(
        self, layout: CallLayout, count: int, device: torch.device, shares_inputs_with: Slots | None = None
    ) -> None:
        self.count = count
        self._owns_inputs = shares_inputs_with is None
        shared = None if shares_inputs_with is None else shares_inputs_with._input_arena  # noqa: SLF001
        self._input_arena: Arena = shared or Arena.allocate(layout.input_bytes * (count + BASES), device)
        try:
            self._output_arena = Arena.allocate(layout.output_bytes * count, device)
        except BaseException:
            if self._owns_inputs:
                self._input_arena.close()
            raise
        inputs = self._input_arena.slots(count + BASES)[:, : layout.input_bytes]
        self.inputs = inputs[:count]
        """``[count, bytes]``"""
        self.base = inputs[count]
        """``[bytes]``: the values that the generator of timed calls changes."""
        self.outputs = self._output_arena.slots(count)[:, : layout.output_bytes]
        """``[count, bytes]``"""
        self.message = Bind(layout.message, count, self._input_arena.handle, self._output_arena.handle)
        """The request that has a worker map them."""
        self.descriptors: tuple[int, ...] = self._input_arena.descriptors + self._output_arena.descriptors
        """The file descriptors that travel with the message."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back; the worker must have let go of it, or be gone."""
        self._output_arena.close()
        if self._owns_inputs:
            self._input_arena.close()


def release_unused(device: torch.device, most_bytes: int) -> None:
    """Give memory of a CUDA device back that torch holds without using it, if it is more than `most_bytes`."""
    if torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) > most_bytes:
        torch.cuda.empty_cache()


def ipc_handle_bytes(handle: Any) -> ctypes.Array[ctypes.c_ubyte]:
    """The memory of an IPC handle, valid while that lives; its only field has no name since cuda-bindings 13.4."""
    return (ctypes.c_ubyte * _IPC_HANDLE_BYTES).from_address(handle.getPtr())


def _checked(result: Any) -> tuple[Any, ...]:
    """The values that a driver call returned beside its status."""
    status, *values = result
    if status.value == 0:
        return tuple(values)
    if status.name == "CUDA_ERROR_OUT_OF_MEMORY":
        raise torch.OutOfMemoryError(
            "CUDA out of memory while an arena was allocated; use smaller workloads, or free memory of the device"
        )
    raise RuntimeError(f"a CUDA driver call failed: {status.name}")


def _cuda_bytes(pointer: int, size_bytes: int, device: torch.device) -> torch.Tensor:
    interface = {"shape": (size_bytes,), "typestr": "|u1", "data": (pointer, False), "version": 3}
    return torch.as_tensor(SimpleNamespace(__cuda_array_interface__=interface), device=device)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
