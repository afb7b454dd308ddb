"""Arrangement of inputs in memory: copies of tensors with given strides."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def strided_copy(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Copy a tensor into memory of its own with these strides.

    Args:
        tensor: What to copy.
        strides: In elements; each element has a place of its own.
    """
    made = torch.empty_strided(tensor.shape, tuple(strides), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)
