"""Compares outputs with the reference's, in the judge, in chunks.

The rule: an element is wrong when its absolute error exceeds atol *and* its relative error exceeds
rtol. NaN and infinity are right where the reference has exactly the same, and nowhere else.
Integers must be equal, and so must the bytes of booleans: any other byte than 0 and 1 reads as true.

Statistics stay on the device, as a row of numbers per chunk, until they are read together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from ..config.model import ResolvedEvalConfig
from .elements import chunks, dtype_name, element_count, has_same_bytes, is_on_cpu, logical_shape, to_double


@attrs.frozen
class Extent:
    """How many elements an expected output has, and how large they are."""

    count: int
    non_finite: int
    largest: float
    """The largest finite magnitude; 0 if nothing is finite."""

    @property
    def non_finite_share(self) -> float:
        """The share of elements that are NaN or infinite."""
        return self.non_finite / self.count if self.count else 0.0


@attrs.frozen
class Rule:
    """What makes an element wrong."""

    atol: float
    rtol: float
    limit: float = math.inf
    """The error that no element may have, however many match."""

    @classmethod
    def from_config(cls, config: ResolvedEvalConfig, dtype: str, extent: Extent) -> Rule:
        """The rule that a configuration has for an output."""
        tolerance = config.tolerance(dtype)
        return cls(tolerance.atol, tolerance.rtol, limit_of(config.error_cap, extent))


def limit_of(error_cap: float, extent: Extent) -> float:
    """The error that no element of an output may have, by what share of the largest that is."""
    return math.inf if math.isinf(error_cap) else error_cap * extent.largest


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
    capped: int = 0
    """Wrong elements whose error exceeds the limit."""
    limit: float = math.inf
    """The error that no element may have, however many match."""
    non_finite_share: float = 0.0
    """The share of expected elements that are NaN or infinite."""

    @property
    def matched_ratio(self) -> float:
        """The share of elements that are right."""
        return 1.0 - self.wrong / self.count if self.count else 1.0

    def is_within(self, required_matched_ratio: float | None) -> bool:
        """Whether enough elements are right, and none is off by more than the limit."""
        return is_enough(self.wrong, self.capped, self.count, required_matched_ratio)

    def explain(self) -> str:
        """Say in one line how it compares."""
        if self.wrong == 0:
            return f"output {self.name!r}: all {self.count} elements match"
        text = f"output {self.name!r}: {self.wrong} of {self.count} elements are wrong; worst {self.worst}"
        if self.capped:
            text += f"; {self.capped} beyond the error cap, which allows {self.limit:g}"
        return text

    def to_extra(self) -> dict[str, Any]:
        """What a trace keeps of it."""
        return {
            "count": self.count,
            "wrong": self.wrong,
            "capped": self.capped,
            "max_absolute_error": self.max_absolute_error,
            "max_relative_error": self.max_relative_error,
            "raw_max_relative_error": self.raw_max_relative_error,
            "non_finite_share": self.non_finite_share,
        }


def is_enough(wrong: int, capped: int, count: int, required_matched_ratio: float | None) -> bool:
    """Whether an output with so many wrong elements is accepted."""
    if required_matched_ratio is None or wrong == 0:
        return wrong == 0
    return capped == 0 and 1.0 - wrong / count >= required_matched_ratio


def compare(name: str, found: torch.Tensor, expected: torch.Tensor, config: ResolvedEvalConfig) -> Comparison:
    """Compare one output of equal shape and dtype with its reference.

    Shapes:
        found, expected: any, the same.
    """
    extent = measure_extent(expected)
    return compare_by(Rule.from_config(config, dtype_name(expected), extent), name, found, expected, extent)


def compare_by(rule: Rule, name: str, found: torch.Tensor, expected: torch.Tensor, extent: Extent) -> Comparison:
    """Compare by a rule, with what is known of the expected output; waits for the device once."""
    rows = []
    for (start, a), (_, b) in zip(chunks(found), chunks(expected), strict=True):
        if not (is_on_cpu(a) and has_same_bytes(a, b)):
            rows.append(_compare_chunk(a, b, rule, start))
    return comparison_of(name, rows, expected, extent, rule.limit)


def comparison_of(
    name: str, rows: Sequence[torch.Tensor], expected: torch.Tensor, extent: Extent, limit: float
) -> Comparison:
    """What the statistics of all pieces of an output say together; waits for the device once.

    Args:
        name: The output's name.
        rows: What `Row.pack` made of each piece that was looked at.
        expected: The output as it should be; only its shape and dtype count.
        extent: What is known of it.
        limit: The error that no element may have.
    """
    total = Row.worst_of(torch.stack(list(rows))) if rows else Row(0.0, 0.0, 0.0)
    return Comparison(
        name=name,
        count=extent.count,
        wrong=total.wrong,
        max_absolute_error=total.absolute,
        max_relative_error=total.relative,
        raw_max_relative_error=total.raw_relative,
        worst=total.describe_worst(expected),
        capped=total.capped,
        limit=limit,
        non_finite_share=extent.non_finite_share,
    )


def measure_extent(expected: torch.Tensor) -> Extent:
    """Look at an expected output; waits for the device once."""
    rows = []
    for _, chunk in chunks(expected):
        values = to_double(chunk).abs_()
        is_odd = values.isfinite().logical_not_()
        rows.append(torch.stack([values.masked_fill_(is_odd, 0).max(), is_odd.sum(dtype=torch.float64)]))
    table = torch.stack(rows).tolist() if rows else []
    largest = max((largest for largest, _ in table), default=0.0)
    return Extent(element_count(expected), int(sum(odd for _, odd in table)), largest)


@attrs.frozen
class Row:
    """The statistics of a chunk, or of all."""

    absolute: float
    relative: float
    raw_relative: float
    worst_error: float = -1.0
    """The largest error of a wrong element; -1 if none is."""
    wrong: int = 0
    capped: int = 0
    worst_index: int = 0
    worst_bits: tuple[int, int] = (0, 0)
    """Found and expected there: an integer, or the bits of a float64."""

    FLOATS = 4

    @staticmethod
    def pack(floats: Sequence[torch.Tensor], *integers: torch.Tensor) -> torch.Tensor:
        """One row, bit by bit in int64, so that one transfer reads it: float64 rounds large integers."""
        return torch.cat([torch.stack(list(floats)).view(torch.int64), *integers])

    @classmethod
    def worst_of(cls, rows: torch.Tensor) -> Row:
        """The worst of all rows; waits for the device."""
        rows = rows.cpu()
        floats = rows[:, : cls.FLOATS].contiguous().view(torch.float64).tolist()
        integers = rows[:, cls.FLOATS :].tolist()
        worst = max(range(len(floats)), key=lambda index: floats[index][-1])
        absolute, relative, raw_relative, worst_error = (max(column) for column in zip(*floats, strict=True))
        wrong, capped = (sum(row[column] for row in integers) for column in (0, 1))
        index, *bits = integers[worst][2:]
        return cls(absolute, relative, raw_relative, worst_error, wrong, capped, index, (bits[0], bits[1]))

    def describe_worst(self, expected: torch.Tensor) -> str:
        """The worst element in words; nothing if none is wrong."""
        if not self.wrong:
            return ""
        place: list[int] = []
        rest = self.worst_index
        for size in reversed(logical_shape(expected)):
            rest, index = divmod(rest, size)
            place.insert(0, index)
        bits = torch.tensor(self.worst_bits)
        found, wanted = (bits.view(torch.float64) if expected.dtype.is_floating_point else bits).tolist()
        return f"at {place}: {found} instead of {wanted}"


def _compare_chunk(found: torch.Tensor, expected: torch.Tensor, rule: Rule, start: int) -> torch.Tensor:
    is_float = expected.dtype.is_floating_point
    a, b = to_double(found), to_double(expected)
    absolute, relative = errors(a, b)
    if not is_float:  # beyond 2**53 float64 cannot tell them apart
        absolute = torch.maximum(absolute, (found.to(torch.int64) - expected.to(torch.int64)).abs().to(torch.float64))
    largest, raw_relative = absolute.max(), relative.max()
    if is_on_cpu(absolute) and largest <= rule.atol:
        nothing = torch.zeros((), dtype=torch.float64)
        return Row.pack((largest, nothing, raw_relative, nothing - 1), torch.zeros(5, dtype=torch.int64))
    exceeds = absolute > rule.atol
    wrong = exceeds & (relative > rule.rtol) if is_float else exceeds
    worst_error, index = torch.where(wrong, absolute, -1.0).max(0)
    capped = (wrong & (absolute > rule.limit)).sum()
    counts = torch.stack([wrong.sum(), capped, index + start])
    pair = [tensor.index_select(0, index.reshape(1)) for tensor in (a, b)]
    if not is_float:
        pair = [tensor.to(torch.int64).index_select(0, index.reshape(1)) for tensor in (found, expected)]
    values = torch.cat(pair).view(torch.int64)
    return Row.pack((largest, relative.masked_fill_(~exceeds, 0).max(), raw_relative, worst_error), counts, values)


def errors(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Absolute and relative errors of float64 tensors: 0 where they are the same, NaN for NaN too."""
    absolute = (a - b).abs_()  # NaN where either is NaN, or both are the same infinity
    if is_on_cpu(absolute) and absolute.max().isfinite():
        return absolute, (absolute / b.abs()).nan_to_num_(nan=0.0, posinf=math.inf)
    same = (a == b) | (a.isnan() & b.isnan())
    absolute.nan_to_num_(nan=math.inf, posinf=math.inf).masked_fill_(same, 0)
    relative = (absolute / b.abs()).nan_to_num_(nan=math.inf, posinf=math.inf).masked_fill_(same, 0)
    return absolute, relative
