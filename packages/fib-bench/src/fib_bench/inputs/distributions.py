"""What else than standard normal numbers a kernel is tried with.

- ``wide``: rows of very different magnitude, which a kernel without scaling per row, or with a
  narrow accumulator, gets wrong.
- ``tiny``: about a thousandth, so that an epsilon matters.
- ``zeros_and_ones``: a quarter of the rows is zero, a quarter is one.

Each is an affine map of the rows of a standard normal tensor: a factor and an offset per row. The
rows of a tensor are all its dimensions but the last; a vector's are its elements.
"""

from __future__ import annotations

import torch
from fib_schema import UnknownName

from ..config.model import DISTRIBUTIONS

_WIDE = (-4.0, 5.0)
"""The powers of two between which the factors of rows lie."""
_WIDE_HALF = (-6.0, 2.0)
"""The same where float16 takes part: a sum over 28,672 products of two such rows stays below 65,504."""
_TINY = 1e-3
_TINY_NARROW = 2.0**-5  # a thousandth is below the smallest number of float8_e4m3fn
CHUNK = 1 << 25
"""Elements that are handled at a time where that needs temporary tensors."""


def check_distribution(name: str) -> None:
    """Refuse a name that is none of `config.DISTRIBUTIONS`.

    Raises:
        UnknownName: It is not.
    """
    if name not in DISTRIBUTIONS:
        raise UnknownName("distribution", name, DISTRIBUTIONS)


def distribute(values: torch.Tensor, distribution: str, generator: torch.Generator, *, is_half: bool = False) -> None:
    """Turn standard normal values into those of a distribution, in place and without waiting for the device.

    Shapes:
        values: any; floating, contiguous.

    Args:
        values: What to change.
        distribution: One of `config.DISTRIBUTIONS`.
        generator: Draws what rows become; on the device of the values.
        is_half: float16 takes part in the computation: keep away from what it cannot hold.
    """
    if distribution == "normal" or not values.numel():
        return
    rows = values.view(-1, values.shape[-1]) if values.dim() > 1 else values.view(-1, 1)
    factors, offsets = _per_row(distribution, rows, generator, is_half)
    step = max(1, CHUNK // rows.shape[1])
    parts = (torch.split(tensor, step) for tensor in (rows, factors, offsets))
    for part, factor, offset in zip(*parts, strict=True):
        part.copy_(within_range(part.float() * factor + offset, values.dtype))


def within_range(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values, clamped in place where a dtype of one byte would make NaN of what it cannot hold."""
    if not dtype.is_floating_point or dtype.itemsize > 1:
        return values
    limit = torch.finfo(dtype).max
    return values.clamp_(-limit, limit)


def _per_row(
    distribution: str, rows: torch.Tensor, generator: torch.Generator, is_half: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """A factor and an offset for each row: two tensors of shape [rows, 1]."""
    draw = torch.rand((len(rows), 1), generator=generator, device=rows.device)
    if distribution == "wide":
        low, high = _WIDE_HALF if is_half else _WIDE
        return torch.exp2(draw * (high - low) + low), torch.zeros_like(draw)
    if distribution == "tiny":
        factor = _TINY_NARROW if rows.dtype.itemsize == 1 else _TINY
        return torch.full_like(draw, factor), torch.zeros_like(draw)
    kinds = draw.argsort(dim=0) % 4  # of a random order, so that even few rows have both; a single one is 1
    return (kinds > 1).float(), (kinds == 0).float()
