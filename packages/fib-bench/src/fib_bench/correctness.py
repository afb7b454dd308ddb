"""Compares outputs with the reference's, in the judge, in chunks.

The rule: an element is wrong when its absolute error exceeds atol *and* its relative error exceeds
rtol. NaN and infinity are right where the reference has exactly the same, and nowhere else.
Integers must be equal, and so must the bytes of booleans: any other byte than 0 and 1 reads as true.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import torch

from .config import ResolvedEvalConfig

_CHUNK = 1 << 22  # elements compared at a time, in float64: 32 MiB each


_FLOAT4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The values of float4_e2m1 by their bits; a byte holds two, the first in its low half."""


@attrs.frozen
class Comparison:
    """How one output compares with its reference."""

    name: str
    count: int
    wrong: int
    max_absolute_error: float
    max_relative_error: float
    """Over the elements whose absolute error exceeds atol."""
    raw_max_relative_error: float
    worst: str
    """The worst element in words; empty if none is wrong."""

    @property
    def matched_ratio(self) -> float:
        """The share of elements that are right."""
        return 1.0 - self.wrong / self.count if self.count else 1.0

    def is_within(self, required_matched_ratio: float | None) -> bool:
        """Whether enough elements are right."""
        if required_matched_ratio is None:
            return self.wrong == 0
        return self.matched_ratio >= required_matched_ratio

    def explain(self) -> str:
        """Say in one line how it compares."""
        if self.wrong == 0:
            return f"output {self.name!r}: all {self.count} elements match"
        return f"output {self.name!r}: {self.wrong} of {self.count} elements are wrong; worst {self.worst}"

    def to_extra(self) -> dict[str, Any]:
        """What a trace keeps of it."""
        return {
            "count": self.count,
            "wrong": self.wrong,
            "max_absolute_error": self.max_absolute_error,
            "max_relative_error": self.max_relative_error,
            "raw_max_relative_error": self.raw_max_relative_error,
        }


def compare(name: str, found: torch.Tensor, expected: torch.Tensor, config: ResolvedEvalConfig) -> Comparison:
    """Compare one output of equal shape and dtype with its reference.

    Shapes:
        found, expected: any, the same.
    """
    found, expected = _comparable(found), _comparable(expected)
    atol, rtol = (config.atol, config.rtol) if expected.dtype.is_floating_point else (0.0, 0.0)
    shape = expected.shape
    found, expected = found.reshape(-1), expected.reshape(-1)
    total = Comparison(name, expected.numel(), 0, 0.0, 0.0, 0.0, "")
    for start in range(0, expected.numel(), _CHUNK):
        part = slice(start, start + _CHUNK)
        chunk = _compare_chunk(found[part], expected[part], atol, rtol)
        total = _merge(total, chunk, shape, start)
    return total


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a dtype that can be converted to float64 and tells all its values apart."""
    if tensor.dtype is torch.bool:
        return tensor.view(torch.uint8)
    if str(tensor.dtype) == "torch.float4_e2m1fn_x2":  # which older versions of torch do not have
        pairs = tensor.view(torch.uint8).to(torch.int64)
        values = torch.tensor(_FLOAT4)
        return torch.stack([values[pairs & 0xF], values[pairs >> 4]], dim=-1).flatten(-2)
    return tensor


@attrs.frozen
class _Chunk:
    wrong: int
    max_absolute_error: float
    max_relative_error: float
    raw_max_relative_error: float
    worst_index: int
    worst_values: tuple[float, float]
    """Found and expected there."""


def _compare_chunk(found: torch.Tensor, expected: torch.Tensor, atol: float, rtol: float) -> _Chunk:
    a, b = found.to(torch.float64), expected.to(torch.float64)
    same = (a == b) | (a.isnan() & b.isnan())
    absolute = torch.where(same, 0.0, (a - b).abs())
    absolute = torch.where(absolute.isnan(), math.inf, absolute)  # NaN where the other has none
    relative = torch.where(same, 0.0, absolute / b.abs())
    relative = torch.where(relative.isnan(), math.inf, relative)  # infinite both
    exceeds = absolute > atol
    wrong = exceeds & (relative > rtol)
    if found.dtype == torch.int64:
        wrong = found != expected  # beyond 2**53 float64 cannot tell them apart
    index = int(torch.where(wrong, absolute, -1.0).argmax())
    return _Chunk(
        int(wrong.sum()),
        float(absolute.max()),
        float(torch.where(exceeds, relative, 0.0).max()),
        float(relative.max()),
        index,
        (found[index].item(), expected[index].item()),
    )


def _merge(total: Comparison, chunk: _Chunk, shape: torch.Size, start: int) -> Comparison:
    worst = total.worst
    if chunk.wrong and (not worst or chunk.max_absolute_error > total.max_absolute_error):
        place = torch.unravel_index(torch.tensor(start + chunk.worst_index), shape)
        found, wanted = chunk.worst_values
        worst = f"at {[int(i) for i in place]}: {found} instead of {wanted}"
    return attrs.evolve(
        total,
        wrong=total.wrong + chunk.wrong,
        max_absolute_error=max(total.max_absolute_error, chunk.max_absolute_error),
        max_relative_error=max(total.max_relative_error, chunk.max_relative_error),
        raw_max_relative_error=max(total.raw_max_relative_error, chunk.raw_max_relative_error),
        worst=worst,
    )


def compare_all(
    found: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
    config: ResolvedEvalConfig,
) -> list[Comparison]:
    """Compare every output."""
    return [compare(name, found[name], expected[name], config) for name in expected]
