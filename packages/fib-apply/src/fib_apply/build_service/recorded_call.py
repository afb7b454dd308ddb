"""Recorded calls: descriptions of a call's inputs from which a child process makes inputs of its own.

Of tensors, shape, strides, dtype and device are recorded. Values are copied only where they can decide what a kernel
reads: integers and booleans, e.g. page tables. All other tensors get random values in the child.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs
import torch
from fib_compile.device import hardware_from_device

_MAX_SMALL_BYTES = 1 << 20
"""Larger tensors of one byte per element hold quantized weights or masks, which no kernel takes addresses from."""


@attrs.frozen(eq=False)
class _TensorRecord:
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str
    strides: tuple[int, ...] | None
    """None for a contiguous tensor."""
    values: torch.Tensor | None
    """A contiguous copy; None for random values."""


_Record: TypeAlias = "_TensorRecord | int | float | bool | None"


@attrs.frozen(eq=False)
class RecordedCall:
    """The inputs of one call."""

    records: tuple[_Record, ...]
    copied: Any
    """The CUDA event after which the copies hold their values; None on the CPU."""
    size_bytes: int
    """Memory of the copies."""
    sizes: str
    """The properties that kernels are compiled for; see `sizes_of`."""

    @classmethod
    def of(cls, inputs: Sequence[Any]) -> RecordedCall:
        """Record a call in the caller's stream: the caller may overwrite its tensors afterwards."""
        records = tuple(_record(value) if isinstance(value, torch.Tensor) else value for value in inputs)
        device = next(value.device for value in inputs if isinstance(value, torch.Tensor))
        copied = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
        return cls(records, copied, copied_bytes(inputs), sizes_of(inputs))

    def to_line(self) -> bytes:
        """One line for the child process; waits until the copies hold their values."""
        if self.copied is not None:
            self.copied.synchronize()
        return base64.b64encode(pickle.dumps([_on_cpu(record) for record in self.records]))


def sizes_of(inputs: Sequence[Any]) -> str:
    """Shapes, strides, dtypes and hardware of a call's tensors, and its other values, as text."""
    return repr([_sizes(value) if isinstance(value, torch.Tensor) else value for value in inputs])


def _sizes(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, hardware_from_device(str(tensor.device))


def copied_bytes(inputs: Sequence[Any]) -> int:
    """Memory of the copies that recording a call makes."""
    return sum(value.nbytes for value in inputs if isinstance(value, torch.Tensor) and _is_copied(value))


def make_inputs(line: bytes) -> list[Any]:
    """Make the inputs of a call that the parent process recorded; the device of its tensors becomes the current one."""
    records = pickle.loads(base64.b64decode(line))  # noqa: S301 of the parent process
    inputs = [_made(record) if isinstance(record, _TensorRecord) else record for record in records]
    device = next(value.device for value in inputs if isinstance(value, torch.Tensor))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return inputs


def _is_copied(tensor: torch.Tensor) -> bool:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return False
    return tensor.element_size() > 1 or tensor.nbytes <= _MAX_SMALL_BYTES


def _record(tensor: torch.Tensor) -> _TensorRecord:
    values = tensor.detach().clone(memory_format=torch.contiguous_format) if _is_copied(tensor) else None
    strides = None if tensor.is_contiguous() else tensor.stride()
    return _TensorRecord(tuple(tensor.shape), tensor.dtype, str(tensor.device), strides, values)


def _on_cpu(record: _Record) -> _Record:
    if not isinstance(record, _TensorRecord) or record.values is None:
        return record
    return attrs.evolve(record, values=record.values.cpu())


def _made(record: _TensorRecord) -> torch.Tensor:
    made = _contiguous(record)
    if record.strides is None:
        return made
    return torch.empty_strided(made.shape, record.strides, dtype=made.dtype, device=made.device).copy_(made)


def _contiguous(record: _TensorRecord) -> torch.Tensor:
    if record.values is not None:
        return record.values.to(record.device)
    made = torch.empty(record.shape, dtype=record.dtype, device=record.device)
    if made.dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128):
        return made.normal_()
    if made.dtype is torch.bool:
        return made.random_(0, 2)
    # Small values of both signs in all formats of one byte, and no infinities or NaN.
    made.view(torch.uint8).random_(0, 64)
    return made
