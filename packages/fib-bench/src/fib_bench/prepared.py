"""Workloads made ready to judge: inputs and buffers in arenas, expected outputs, a reference time."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

import attrs
import torch
from fib_schema import Definition, Workload

from .buffers import Arena, TensorLayout, place
from .inputs import Value
from .wire import AbsentSlot, InputSet, InputSlot, Measured, ScalarSlot


@attrs.frozen
class Timing:
    """A latency with what it rests on."""

    latency_ms: float
    samples: int
    calls_per_sample: int
    spread: float
    """The distance between the quartiles, relative to the median."""

    @classmethod
    def from_measured(cls, measured: Measured) -> Timing:
        """Derive the statistics of a worker's samples."""
        samples = sorted(measured.samples_ns)
        median = statistics.median(samples)
        low, high = samples[len(samples) // 4], samples[(3 * len(samples)) // 4]
        spread = (high - low) / median if median else 0.0
        return cls(median / 1e6, len(samples), measured.calls_per_sample, spread)

    def to_extra(self) -> dict[str, object]:
        """What a trace keeps of it."""
        return {
            "method": "host_clock",
            "samples": self.samples,
            "calls_per_sample": self.calls_per_sample,
            "spread": round(self.spread, 5),
        }


@attrs.frozen
class PreparedSet:
    """One set of inputs and the expected outputs; the solution's outputs have a place too."""

    layout: InputSet
    inputs: Arena
    checksum: int
    expected: Arena
    found: Arena

    def expected_outputs(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """The reference's outputs by name."""
        slots = self.layout.outputs
        return {name: self.expected.tensor(slot) for name, slot in zip(names, slots, strict=True)}

    def found_outputs(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """The solution's outputs by name."""
        slots = self.layout.outputs
        return {name: self.found.tensor(slot) for name, slot in zip(names, slots, strict=True)}

    def close(self) -> None:
        """Let go of the arenas."""
        for arena in (self.inputs, self.expected, self.found):
            arena.close()


@attrs.frozen
class PreparedWorkload:
    """A workload with its inputs, expected outputs and the reference's latency."""

    workload: Workload
    sets: tuple[PreparedSet, ...]
    reference: Timing

    def close(self) -> None:
        """Let go of the arenas."""
        for item in self.sets:
            item.close()


def set_bytes(definition: Definition, workload: Workload) -> int:
    """How much memory one input set with its expected and found outputs takes."""
    inputs = _input_layouts(definition, workload.axes)
    outputs = _output_layouts(definition, workload.axes)
    return place(inputs)[1] + 2 * place(outputs)[1]


def share_set(definition: Definition, workload: Workload, values: Mapping[str, Value]) -> PreparedSet:
    """Copy one set of inputs into an arena, and allocate arenas for the outputs."""
    slots, arena = _share(values)
    outputs, size = place(_output_layouts(definition, workload.axes))
    layout = InputSet(slots, outputs)
    return PreparedSet(layout, arena, arena.checksum(), Arena.allocate(size), Arena.allocate(size))


def _share(values: Mapping[str, Value]) -> tuple[tuple[InputSlot, ...], Arena]:
    """Copy inputs into an arena; returns how to find each there."""
    tensors = [value for value in values.values() if isinstance(value, torch.Tensor)]
    slots, size = place([TensorLayout(_dtype_name(t), tuple(t.shape)) for t in tensors])
    arena = Arena.allocate(size)
    placed = iter(slots)
    described: list[InputSlot] = []
    for value in values.values():
        if isinstance(value, torch.Tensor):
            slot = next(placed)
            arena.tensor(slot).copy_(value)
            described.append(slot)
        else:
            described.append(AbsentSlot() if value is None else ScalarSlot(value))
    return tuple(described), arena


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _input_layouts(definition: Definition, axes: Mapping[str, int]) -> list[TensorLayout]:
    """The layouts of all tensors among the inputs."""
    shapes = definition.get_input_shapes(axes)
    specs = definition.inputs.values()
    pairs = zip(specs, shapes, strict=True)
    return [TensorLayout(spec.dtype, shape) for spec, shape in pairs if shape is not None]


def _output_layouts(definition: Definition, axes: Mapping[str, int]) -> list[TensorLayout]:
    """A place for every output; a scalar's is a tensor of no dimension."""
    shapes = definition.get_output_shapes(axes)
    specs = definition.outputs.values()
    return [TensorLayout(spec.dtype, shape or ()) for spec, shape in zip(specs, shapes, strict=True)]
