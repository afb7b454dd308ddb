"""Self-test of the kernels of fused comparisons: sample outputs, compared by the kernels and by torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch

from .element_statistics import Rule, Statistics, count_in_torch, extent_in_torch, statistics_in_torch
from .elements import flat, is_float4, to_double
from .fused_kernels import Kernels

SHAPES = ((1,), (257,), (43, 53), (2, 3, 1000))
"""Shapes of sample outputs: of one block and of several, whose ends lie inside of rows."""
_RULES = (Rule(0.0, 0.0, row_share=0.1), Rule(1e-2, 1e-2, limit=0.5), Rule(math.inf, 0.0))
_SPECIAL = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan)
_NEAR = torch.tensor([0, 0, 0, 1, 2, 0x80], dtype=torch.uint8)
"""Changes of an element's last byte."""


class KernelsDiffer(AssertionError):
    """The kernels gave another result than torch."""


def check_kernels(kernels: Kernels, dtype: torch.dtype, device: torch.device, *, is_brief: bool = False) -> None:
    """Compare sample outputs by the kernels and by torch.

    Args:
        kernels: Loaded for the device.
        dtype: Of the outputs, one of `KINDS`.
        device: Where the outputs are.
        is_brief: Whether to compare one pair by one rule: some 150 launches of torch's kernels.

    Raises:
        KernelsDiffer: A result differs.
    """
    rules = _RULES[1:2] if is_brief else _RULES
    for found, expected in sample_pairs(dtype, SHAPES[2:3] if is_brief else SHAPES):
        where = f"{str(dtype).removeprefix('torch.')}{list(expected.shape)}"
        compare_ways(kernels, _copied(found, device), _copied(expected, device), rules, where)
    if is_brief:
        return
    if _has_nan(dtype):
        found, expected = rows_with_undefined(dtype)
        where = f"undefined elements of {dtype}"
        compare_ways(kernels, _copied(found, device), _copied(expected, device), _RULES, where)
    _check_values(kernels, dtype, device)


def _copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of the bytes: not every device copies the smallest floats."""
    return tensor.view(torch.uint8).to(device).view(tensor.dtype)


def compare_ways(
    kernels: Kernels, found: torch.Tensor, expected: torch.Tensor, rules: tuple[Rule, ...], where: str
) -> None:
    """Compare one output by the kernels and by torch.

    Args:
        kernels: Loaded for the device of the outputs.
        found: What a function gave.
        expected: What it should have given.
        rules: The rules to compare by.
        where: Names the output in messages.

    Raises:
        KernelsDiffer: A result differs.
    """
    extent = extent_in_torch(expected)
    _raise_if_different(kernels.extent(expected), extent, f"extent of {where}")
    has_undefined = extent.undefined > 0
    a, per_item = flat(found), 2 if is_float4(found) else 1

    def elements(b: torch.Tensor, start: int) -> torch.Tensor:
        return to_double(a[start // per_item : (start + b.numel()) // per_item])

    def finite_elements(b: torch.Tensor, start: int) -> torch.Tensor:
        values = elements(b, start)
        return torch.where(values.isfinite(), values, b)

    for rule in rules:
        row = kernels.statistics(found, expected, rule, has_undefined=has_undefined)
        rows = statistics_in_torch(found, expected, rule, has_undefined=has_undefined)
        wanted = Statistics.worst_of(rows) if rows else Statistics(0.0, 0.0, 0.0)
        _raise_if_different(_readable(Statistics.worst_of([row]), expected), _readable(wanted, expected), where)
        for name, answer, in_torch, keeps in (
            ("zeros", 0.0, lambda b, _: torch.zeros_like(b), False),
            ("scaled", 1.05, lambda b, _: b * 1.05, False),
            ("elements", found, elements, False),
            ("finite elements", found, finite_elements, True),
        ):
            counts = kernels.count(answer, expected, rule, has_undefined=has_undefined, keeps_infinite=keeps)
            reference = count_in_torch(in_torch, expected, rule, has_undefined=has_undefined)
            _raise_if_different(counts.tolist(), reference.tolist(), f"{name} for {where}")


def rows_with_undefined(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows with every number of undefined and of wrong elements, found and expected."""
    width = 16
    undefined, wrong = torch.meshgrid(torch.arange(width + 1), torch.arange(width + 1), indexing="ij")
    column = torch.arange(width)
    expected = torch.where(column < undefined.reshape(-1, 1), math.nan, 1.0)
    found = torch.where(column >= width - wrong.reshape(-1, 1), 2.0, 1.0)
    return found.to(dtype), expected.to(dtype)


def _has_nan(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and not is_float4(torch.empty(0, dtype=dtype))


def _check_values(kernels: Kernels, dtype: torch.dtype, device: torch.device) -> None:
    """Convert elements of all bits, of wide dtypes random ones, to float64 by the kernels and by torch."""
    size = torch.empty(0, dtype=dtype).element_size()
    if size <= 2:
        items = torch.arange(1 << 16).to(torch.int16).view(torch.uint8)
    else:
        items = torch.randint(256, (size << 16,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    elements = items.to(device).view(dtype)
    values = to_double(flat(elements))
    for found, expected in ((elements, values), (values, elements)):
        counts = kernels.count(found, expected, _RULES[0], has_undefined=dtype.is_floating_point)
        _raise_if_different(counts.tolist(), [0, 0, 0, 0], f"values of {dtype}")


def sample_pairs(
    dtype: torch.dtype, shapes: Iterable[tuple[int, ...]] = SHAPES
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of outputs, on the CPU: random bits and ordinary numbers, of which some differ a little or much."""
    generator = torch.Generator().manual_seed(0)
    for shape in shapes:
        count = math.prod(shape)
        expected = _elements(dtype, count, generator)
        found = expected.clone()
        places = torch.rand(count, generator=generator)
        ends = torch.tensor([0, count - 1])
        data = found.view(torch.uint8).view(count, -1)
        other = _elements(dtype, count, generator).view(torch.uint8).view(count, -1)
        if dtype is not torch.bool:
            data[:, -1] ^= torch.where(places < 0.2, data[:, -1].new_ones(()), 0)
        data[:, 0] ^= _NEAR[torch.randint(len(_NEAR), (count,), generator=generator)] * (places < 0.3)
        far = (places > 0.9).index_fill(0, ends, True).unsqueeze(1)
        data.copy_(torch.where(far, other, data))
        yield found.view(shape), expected.view(shape)


def _elements(dtype: torch.dtype, count: int, generator: torch.Generator) -> torch.Tensor:
    """Elements in one dimension: random bits first, then ordinary numbers, with special values in between."""
    size = torch.empty(0, dtype=dtype).element_size()
    elements = torch.randint(256, (count, size), generator=generator, dtype=torch.uint8).flatten().view(dtype)
    if _has_nan(dtype):
        elements[count // 3 :] = torch.randn(count - count // 3, generator=generator).abs_().to(dtype)
        special = torch.tensor(_SPECIAL).to(dtype)
        picked = torch.randint(len(_SPECIAL), (count,), generator=generator)
        is_special = torch.rand(count, generator=generator) < 0.1
        items = elements.view(torch.uint8).view(count, size)
        items.copy_(torch.where(is_special.unsqueeze(1), special.view(torch.uint8).view(-1, size)[picked], items))
    return elements


def _readable(statistics: Statistics, expected: torch.Tensor) -> tuple[object, ...]:
    """All that is read of statistics; NaN in them is the same whatever its bits."""
    fields = (statistics.absolute, statistics.relative, statistics.raw_relative, statistics.worst_error)
    counts = (statistics.wrong, statistics.capped, statistics.worst_row)
    return (*fields, *counts, statistics.describe_worst(expected))


def _raise_if_different(found: object, wanted: object, where: str) -> None:
    if found != wanted:
        raise KernelsDiffer(f"{where}: the kernels give {found}, torch gives {wanted}")
