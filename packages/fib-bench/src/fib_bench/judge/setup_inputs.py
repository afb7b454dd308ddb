"""Inputs of ``setup``. It sees the integers, shapes and scalars of a call, but other floating values."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..inputs.variation import Variation, vary
from ..secure_random import SECRET
from ..transport.slots import CallLayout
from .prepared import InputSet


def other_floats(layout: CallLayout, inputs: torch.Tensor) -> torch.Tensor:
    """Return the inputs with each floating element multiplied by a random factor of its own; zeros stay."""
    changed = inputs.clone()
    tensors = layout.input_tensors(inputs)
    names = {n: Variation.RESCALED for n, t in tensors.items() if t.is_floating_point() and t.numel()}
    generator = torch.Generator(inputs.device).manual_seed(SECRET.getrandbits(62))
    vary(layout.input_tensors(changed.unsqueeze(0)), tensors, tensors, names, generator)
    return changed


def write_tensors(targets: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    """Copy tensors into the inputs of the same names."""
    for name, value in values.items():
        targets[name].copy_(value)


def have_same_integers(layout: CallLayout, one: InputSet, other: InputSet) -> bool:
    """Whether two sets differ in floating values only."""
    pairs = zip(layout.input_tensors(one.inputs).values(), layout.input_tensors(other.inputs).values(), strict=True)
    return all(a.is_floating_point() or torch.equal(a, b) for a, b in pairs)
