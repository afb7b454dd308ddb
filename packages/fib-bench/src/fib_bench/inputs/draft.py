"""Input drafts: the inputs of one workload while they are being synthesized.

A maker is a function that takes a draft, the name of an input and a random generator, and returns
the value of that input. Makers may read inputs that the draft already contains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import torch
from fib_compile.device import torch_dtype
from fib_schema import Definition, TensorSpec


class SynthesisError(Exception):
    """No valid values can be synthesized for an input; the text states the reason."""


@attrs.define
class InputDraft:
    """Incomplete inputs of one workload.

    Args:
        definition: The definition that the inputs belong to.
        axes: Sizes of all axes, constant ones included.
        seed: Seed of the workload's inputs.
        device: Device of the finished tensors.
        distribution: One of `config.DISTRIBUTIONS`.
        values: Inputs that exist so far, by name.
    """

    definition: Definition
    axes: dict[str, int]
    seed: int
    device: torch.device = attrs.field(factory=lambda: torch.device("cpu"))
    distribution: str = "normal"
    values: dict[str, torch.Tensor | int | float | bool | None] = attrs.field(factory=dict)

    def generator(self, name: str, device: torch.device) -> torch.Generator:
        """Return a generator for one input; its seed does not depend on the order of synthesis."""
        position = list(self.definition.inputs).index(name)
        seed = (self.seed + 0x9E3779B97F4A7C15 * (position + 1)) >> 1 & (2**62 - 1)
        return torch.Generator(device).manual_seed(seed)

    def spec(self, name: str) -> TensorSpec:
        """Return the specification of an input."""
        return self.definition.inputs[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input; () for a scalar."""
        return tuple(self.axes[axis] for axis in self.spec(name).shape or ())

    def tensor(self, name: str) -> torch.Tensor | None:
        """Return an input that exists and is a tensor, else None."""
        value = self.values.get(name)
        return value if isinstance(value, torch.Tensor) else None

    def axis(self, *names: str) -> int | None:
        """Return the size of the first of these axes that exists."""
        return first_axis(self.axes, *names)


Maker = Callable[[InputDraft, str, torch.Generator], torch.Tensor | float]
TensorMaker = Callable[[InputDraft, str, torch.Generator], torch.Tensor]


def first_axis(axes: Mapping[str, int], *names: str) -> int | None:
    """Return the size of the first of the named axes that exists."""
    return next((axes[name] for name in names if name in axes), None)


def tensor_dtype(spec: TensorSpec) -> torch.dtype:
    """Return the torch dtype of a tensor specification.

    Raises:
        SynthesisError: The installed torch does not have this dtype.
    """
    try:
        return torch_dtype(spec.dtype)
    except AttributeError as error:  # float4_e2m1 came with torch 2.8
        raise SynthesisError(f"torch {torch.__version__} has no dtype for {spec.dtype}; use a newer one") from error
