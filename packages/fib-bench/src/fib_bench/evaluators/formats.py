"""Low-precision number formats. Real values, rounding steps, and the layout of scales."""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs
import torch

from ..checking.elements import dtype_name, is_float4

_PACKED = re.compile(r"fp4|float4|e2m1|packed", re.IGNORECASE)
_EXPONENT_BIAS = 127
"""Scales in one byte without sign (e8m0) are powers of two."""


@attrs.frozen
class Format:
    """A number format."""

    name: str
    mantissa_bits: int
    """0 for integers, whose steps are all 1."""
    least_exponent: int = 0
    """Exponent of the smallest normal number; below it, steps do not get any smaller."""
    is_packed: bool = False
    """Two numbers to a byte, the first in its low half; the last axis counts bytes."""

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself; bytes that hold pairs as such."""
        if not self.is_packed or is_float4(tensor):
            return tensor
        dtype = getattr(torch, "float4_e2m1fn_x2")  # noqa: B009 which older versions of torch do not have
        return tensor.contiguous().view(dtype)

    def step(self, values: torch.Tensor) -> torch.Tensor:
        """The distance to the next number away from zero, of values in this format."""
        if not self.mantissa_bits:
            return torch.ones_like(values)
        _, exponents = torch.frexp(values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
        smallest = torch.full_like(exponents, self.least_exponent)
        exponents = torch.where(values == 0, smallest, torch.maximum(exponents - 1, smallest))
        return torch.ldexp(torch.ones_like(values), exponents - self.mantissa_bits)


_FORMATS = {
    "float8_e4m3fn": Format("float8_e4m3fn", 3, -6),
    "float8_e5m2": Format("float8_e5m2", 2, -14),
    "float4_e2m1": Format("float4_e2m1", 1, 0, is_packed=True),
}


def format_of(tensor: torch.Tensor, described: str) -> Format | None:
    """The format of a tensor; None if its elements have many bits.

    Args:
        tensor: Any.
        described: Words about it: bytes may hold pairs of fp4 numbers.
    """
    dtype = dtype_name(tensor)
    if dtype == "int8":
        return _FORMATS["float4_e2m1"] if _PACKED.search(described) else Format("int8", 0)
    return _FORMATS.get(dtype)


def fits(scale: torch.Tensor, shape: Sequence[int]) -> bool:
    """Whether the shape of the scales determines to which elements each scale applies."""
    return _oriented(scale, shape) is not None


def expand_scale(scale: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The factor of every number.

    Args:
        scale: One for all, one per row, or one per block along every axis, the last two of which may
            be exchanged; bytes are exponents.
        shape: Of the numbers; `fits` holds for it.
    """
    factors = _oriented(_real(scale), shape)
    assert factors is not None
    for axis, size in enumerate(shape):
        factors = factors.repeat_interleave(size // max(factors.shape[axis], 1), dim=axis)
    return factors


def _oriented(scale: torch.Tensor, shape: Sequence[int]) -> torch.Tensor | None:
    """The scales with an axis for every one of a shape."""
    if scale.numel() == 1:
        return scale.reshape([1] * len(shape))
    if scale.shape == tuple(shape[:-1]):
        return scale.unsqueeze(-1)
    for turned in (scale, scale.mT if scale.dim() >= 2 else scale):
        if turned.dim() == len(shape) and all(
            count and size % count == 0 for count, size in zip(turned.shape, shape, strict=True)
        ):
            return turned
    return None


def _real(scale: torch.Tensor) -> torch.Tensor:
    """The factors themselves, in float32."""
    if scale.dtype.is_floating_point:
        return scale.float()
    exponents = (scale.view(torch.uint8) if scale.dtype == torch.int8 else scale).int() - _EXPONENT_BIAS
    return torch.ldexp(torch.ones(scale.shape, device=scale.device), exponents)
