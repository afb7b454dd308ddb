"""Slots. Memory that the judge shares with one worker: the inputs and outputs of several calls.

Every call of a timed pass has a slot of its own, with its own addresses and values. Its outputs are poisoned
before the pass and stay in place afterwards for the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from fib_schema import Definition, Workload
from fib_schema.strides import normalized_strides, workload_strides

from ..checking.comparison import dtype_name
from ..inputs.generation import Value
from .arenas import Arena, CallLayout, place
from .messages import BASES, Argument, Bind, Layout, TensorSlot

__all__ = ["CallLayout", "Slots", "call_bytes", "layout_of"]


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


class Slots:
    """Slots for `count` calls, shared with one worker.

    Functions that are compared read the same memory, because the addresses of inputs shift a latency by some percent:
    `shares_inputs_with` has the inputs, and outlives these slots. Outputs are never shared.
    """

    def __init__(
        self, layout: CallLayout, count: int, device: torch.device, shares_inputs_with: Slots | None = None
    ) -> None:
        self.layout = layout
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def message(self) -> Bind:
        """The request that has a worker map them."""
        return Bind(self.layout.message, self.count, self._input_arena.handle, self._output_arena.handle)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The file descriptors that travel with the message."""
        return self._input_arena.descriptors + self._output_arena.descriptors

    def close(self) -> None:
        """Give the memory back; the worker must have let go of it, or be gone."""
        self._output_arena.close()
        if self._owns_inputs:
            self._input_arena.close()
