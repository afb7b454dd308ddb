"""Comparison of outputs with those of the reference, in the judge.

`element_statistics` states when an element is wrong. With a matched ratio some elements may be wrong, but no
whole row (`rows`). On a CUDA device one kernel compares an output, where it can (`fused_comparison`); else torch does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from ..config.model import ResolvedEvalConfig
from .element_statistics import Extent, Rule, Statistics, extent_in_torch, statistics_in_torch
from .elements import dtype_name
from .fused_comparison import fused
from .rows import NO_ROW, WorstRow


@attrs.frozen
class Comparison:
    """The comparison of one output with its reference."""

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
    undefined: int = 0
    """Elements for which the reference gives NaN; never wrong."""
    infinite_share: float = 0.0
    """The share of expected elements that are infinite."""
    worst_row: WorstRow = NO_ROW
    allowed: str = ""
    """The errors that an element may have, in words; empty where elements must be equal."""

    @property
    def undefined_share(self) -> float:
        """The share of elements for which the reference gives NaN."""
        return self.undefined / self.count if self.count else 0.0

    @property
    def matched_ratio(self) -> float:
        """The share of defined elements that are right."""
        return 1.0 - self.wrong / (self.count - self.undefined) if self.wrong else 1.0

    def is_within(self, required_matched_ratio: float | None) -> bool:
        """Whether enough elements are right, no error exceeds the limit, and no row is wrong."""
        defined = self.count - self.undefined
        return is_enough(self.wrong, self.capped, self.worst_row.bad_rows, defined, required_matched_ratio)

    def explain(self) -> str:
        """Describe the comparison in one line."""
        if self.wrong == 0:
            return f"output {self.name!r}: all {self.count} elements match"
        text = f"output {self.name!r}: {self.wrong} of {self.count} elements are wrong; worst {self.worst}"
        if self.allowed:
            text += f" (allowed: {self.allowed})"
        if self.capped:
            text += f"; {self.capped} beyond the error cap, which allows {self.limit:g}"
        if self.worst_row.bad_rows:
            text += f"; {self.worst_row.explain()}"
        return text

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace."""
        return {
            "count": self.count,
            "wrong": self.wrong,
            "capped": self.capped,
            "bad_rows": self.worst_row.bad_rows,
            "max_absolute_error": self.max_absolute_error,
            "max_relative_error": self.max_relative_error,
            "raw_max_relative_error": self.raw_max_relative_error,
            "undefined_share": self.undefined_share,
            "infinite_share": self.infinite_share,
        }


def is_enough(wrong: int, capped: int, bad_rows: int, defined: int, required_matched_ratio: float | None) -> bool:
    """Whether an output with these counts of wrong elements and rows is accepted."""
    if required_matched_ratio is None or wrong == 0:
        return wrong == 0
    return capped == 0 and bad_rows == 0 and 1.0 - wrong / defined >= required_matched_ratio


def compare(name: str, found: torch.Tensor, expected: torch.Tensor, config: ResolvedEvalConfig) -> Comparison:
    """Compare one output of equal shape and dtype with its reference.

    Shapes:
        found, expected: any, the same.
    """
    extent = measure_extent(expected)
    return compare_by(Rule.from_config(config, dtype_name(expected), extent), name, found, expected, extent)


def compare_by(rule: Rule, name: str, found: torch.Tensor, expected: torch.Tensor, extent: Extent) -> Comparison:
    """Compare by a rule; `extent` is that of the expected output. Synchronizes the device once."""
    has_undefined = extent.undefined > 0
    row = fused(expected, lambda kernels: kernels.statistics(found, expected, rule, has_undefined=has_undefined))
    rows = [row] if row is not None else statistics_in_torch(found, expected, rule, has_undefined=has_undefined)
    allowed = rule.explain() if expected.is_floating_point() else ""
    return comparison_of(name, rows, expected, extent, rule.limit, allowed)


def comparison_of(
    name: str, rows: Sequence[torch.Tensor], expected: torch.Tensor, extent: Extent, limit: float, allowed: str
) -> Comparison:
    """Combine the statistics of all pieces of an output; synchronizes the device once.

    Args:
        name: The output's name.
        rows: The results of `Statistics.pack` and `Statistics.pack_rows` for each compared piece.
        expected: The expected output; only its shape and dtype matter.
        extent: The extent of the expected output.
        limit: The error that no element may have.
        allowed: The errors that an element may have, in words.
    """
    total = Statistics.worst_of(rows) if rows else Statistics(0.0, 0.0, 0.0)
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
        undefined=extent.undefined,
        infinite_share=extent.infinite_share,
        worst_row=total.worst_row,
        allowed=allowed,
    )


def measure_extent(expected: torch.Tensor) -> Extent:
    """Measure an expected output; synchronizes the device once."""
    extent = fused(expected, lambda kernels: kernels.extent(expected))
    return extent if extent is not None else extent_in_torch(expected)
