"""Generated inputs in memory of the judge, as timed calls get them, and the inputs of ``setup``."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..inputs.generator import native_input
from ..recipe import Recipe
from ..secure_random import SECRET
from ..timing.handshake import native
from ..timing.handshake.native import open_native
from ..transport.slots import CallLayout


def fill(recipes: Mapping[str, Recipe], layout: CallLayout, memory: torch.Tensor, base: torch.Tensor, key: int) -> None:
    """Generate inputs in memory laid out like a slot, as a call with this key gets them.

    Shapes:
        memory: ``[bytes]``
        base: ``[bytes]``, the values that some kinds of inputs change.
    """
    if recipes:
        places = ((recipe, layout.inputs[name].offset) for name, recipe in recipes.items())
        inputs = [native_input(recipe, memory.data_ptr() + at, base.data_ptr() + at) for recipe, at in places]
        open_native(memory.device, makes_passes=False).refill(native.call_of(inputs, ()), key)


def other_values(recipes: Mapping[str, Recipe], layout: CallLayout, inputs: torch.Tensor) -> torch.Tensor:
    """The inputs of ``setup``: structural integers, shapes and scalars of a call, but other values."""
    changed = inputs.clone()
    for name, tensor in layout.input_tensors(changed).items():
        if tensor.is_floating_point() and name not in recipes and tensor.dtype.itemsize > 1:
            tensor.mul_(torch.empty(tensor.shape, device=tensor.device).uniform_(0.5, 0.85))
    fill(recipes, layout, changed, inputs, SECRET.getrandbits(64))
    return changed


def write_tensors(targets: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    """Copy tensors into the inputs of the same names."""
    for name, value in values.items():
        targets[name].copy_(value)
