"""Distributions of plain floating-point inputs other than standard normal.

- ``wide``: rows of very different magnitude, evenly spread between bounds that both occur. Kernels without a
  scale per row, with a narrow accumulator or with exponentials that overflow fail.
- ``tiny``: values of about a thousandth, so that an epsilon matters.
- ``zeros_and_ones``: a quarter of the rows is zero, a quarter is one.
- ``shifted``: the mean of each column is 3 or -3. Recurrences whose gates are near zero forget soon; with
  these gates they do not, and kernels that begin in the middle fail.

Each distribution multiplies each row of a standard normal tensor by a factor and adds an offset to each row or column.
All dimensions but the last form the rows of a tensor; the rows of a vector are its elements.
"""

from __future__ import annotations

import torch
from fib_schema import UnknownName

from ..config.model import DISTRIBUTIONS

_WIDE_EXPONENTS = (-4.0, 5.0)
"""Bounds of log2 of the factors of rows."""
_WIDE_EXPONENTS_HALF = (-6.0, 2.0)
"""The bounds if float16 takes part: a sum over 28,672 products of two such rows stays below 65,504."""
_TINY = 1e-3
_TINY_ONE_BYTE = 2.0**-5  # a thousandth is below the smallest number of float8_e4m3fn
_SHIFT = 3.0  # a sigmoid of it is 0.95: a recurrence still sees a third of what was 24 steps before
CHUNK_ELEMENTS = 1 << 25
"""Elements per step of operations with temporary tensors; bounds the temporary memory."""


def check_distribution(name: str) -> None:
    """Check that a distribution of this name exists.

    Raises:
        UnknownName: The name is not in `config.DISTRIBUTIONS`.
    """
    if name not in DISTRIBUTIONS:
        raise UnknownName("distribution", name, DISTRIBUTIONS)


def distribute(values: torch.Tensor, distribution: str, generator: torch.Generator, *, is_half: bool = False) -> None:
    """Convert standard normal values to a distribution, in place and without synchronizing the device.

    Shapes:
        values: any; floating-point, contiguous.

    Args:
        values: The tensor to change.
        distribution: One of `config.DISTRIBUTIONS`.
        generator: Draws factors and offsets; on the device of the values.
        is_half: Whether float16 takes part in the computation; limits the magnitude of ``wide``.
    """
    if distribution == "normal" or not values.numel():
        return
    rows = values.view(-1, values.shape[-1]) if values.dim() > 1 else values.view(-1, 1)
    if distribution == "shifted":
        _shift_columns(rows, generator)
        return
    factors, offsets = _per_row(distribution, rows, generator, is_half)
    step = max(1, CHUNK_ELEMENTS // rows.shape[1])
    parts = (torch.split(tensor, step) for tensor in (rows, factors, offsets))
    for part, factor, offset in zip(*parts, strict=True):
        part.copy_(clamp_to_range(part.float() * factor + offset, values.dtype))


def _shift_columns(rows: torch.Tensor, generator: torch.Generator) -> None:
    """Add the mean of each column."""
    signs = torch.rand((1, rows.shape[1]), generator=generator, device=rows.device).lt(0.5)
    means = torch.where(signs, -_SHIFT, _SHIFT)
    for part in torch.split(rows, max(1, CHUNK_ELEMENTS // rows.shape[1])):
        part.copy_(clamp_to_range(part.float() + means, rows.dtype))


def clamp_to_range(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Clamp values in place to the finite range of a one-byte floating dtype; otherwise change nothing.

    A conversion to such a dtype turns values beyond its range into NaN.
    """
    if not dtype.is_floating_point or dtype.itemsize > 1:
        return values
    limit = torch.finfo(dtype).max
    return values.clamp_(-limit, limit)


def _per_row(
    distribution: str, rows: torch.Tensor, generator: torch.Generator, is_half: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factor and the offset of each row: two tensors of shape [rows, 1]."""
    draw = torch.rand((len(rows), 1), generator=generator, device=rows.device)
    if distribution == "wide":
        low, high = _WIDE_EXPONENTS_HALF if is_half else _WIDE_EXPONENTS
        share = draw.argsort(dim=0) / (len(rows) - 1) if len(rows) > 1 else draw  # both bounds always occur
        return torch.exp2(share * (high - low) + low), torch.zeros_like(draw)
    if distribution == "tiny":
        factor = _TINY_ONE_BYTE if rows.dtype.itemsize == 1 else _TINY
        return torch.full_like(draw, factor), torch.zeros_like(draw)
    kinds = draw.argsort(dim=0) % 4  # a random order: even few rows contain both kinds; a single row becomes 1
    return (kinds > 1).float(), (kinds == 0).float()
