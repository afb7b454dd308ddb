"""Comparison of outputs with those of the reference, in the judge.

An element is wrong when its absolute error exceeds atol *and* its relative error exceeds rtol. Where the reference
gives NaN the element is undefined, and any value is right. Infinity is right where the reference has exactly the same,
and nowhere else. Integers must be equal, and so must the bytes of booleans: any other byte than 0 and 1 reads as true.
With a matched ratio some elements may be wrong, but no whole row.

Statistics stay on the device, as a row of numbers per chunk, until they are read together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

from ..config.model import ResolvedEvalConfig
from ..errors import OutputsUndefined
from .elements import (
    NO_ROW,
    WHOLE_ROW,
    RowCounter,
    WorstRow,
    chunks,
    dtype_name,
    element_count,
    has_same_bytes,
    is_on_cpu,
    logical_shape,
    to_double,
)


@attrs.frozen
class Extent:
    """The number of elements of an expected output, and their magnitude."""

    count: int
    undefined: int
    """Elements that are NaN: any value is right there."""
    infinite: int
    largest: float
    """The largest finite magnitude; 0 if nothing is finite."""

    @property
    def defined(self) -> int:
        """The number of elements that are compared."""
        return self.count - self.undefined

    @property
    def undefined_share(self) -> float:
        """The share of elements that are NaN."""
        return self.undefined / self.count if self.count else 0.0

    @property
    def infinite_share(self) -> float:
        """The share of elements that are infinite."""
        return self.infinite / self.count if self.count else 0.0


@attrs.frozen
class ErrorLimits:
    """The limits beyond which an element or a row is wrong."""

    atol: float
    rtol: float
    limit: float = math.inf
    """The error that no element may have, however many match."""
    row_share: float = WHOLE_ROW
    """The largest share of a row's elements that may be wrong, however many match in other rows."""

    @classmethod
    def from_config(cls, config: ResolvedEvalConfig, dtype: str, extent: Extent) -> ErrorLimits:
        """The rule for an output by the configuration."""
        tolerance = config.tolerance(dtype)
        return cls(tolerance.atol, tolerance.rtol, limit_of(config.error_cap, extent))

    def explain(self) -> str:
        """The errors that an element may have, in words."""
        return f"absolute error {self.atol:g} or relative error {self.rtol:g}"


def limit_of(error_cap: float, extent: Extent) -> float:
    """The error cap of an output in absolute terms: a multiple of its largest magnitude."""
    return math.inf if math.isinf(error_cap) else error_cap * extent.largest


@attrs.frozen
class Statistics:
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
    worst_row: WorstRow = NO_ROW

    FLOATS, INTEGERS, WIDTH = 4, 5, 12

    @classmethod
    def pack(cls, floats: Sequence[torch.Tensor], *integers: torch.Tensor) -> torch.Tensor:
        """One row without counts of rows, reinterpreted as int64, so that one transfer reads it.

        Float64 rounds large integers.
        """
        head = torch.stack(list(floats)).view(torch.int64)
        return torch.cat([head, *integers, torch.zeros(3, dtype=torch.int64, device=head.device)])

    @classmethod
    def pack_rows(cls, worst: torch.Tensor) -> torch.Tensor:
        """One row that contains only the worst row of an output, as packed by `RowCounter.worst`."""
        floats = torch.zeros(cls.FLOATS, dtype=torch.float64, device=worst.device)
        floats[-1] -= 1.0
        return torch.cat([floats.view(torch.int64), torch.zeros_like(worst[:1]).expand(cls.INTEGERS), worst])

    @classmethod
    def worst_of(cls, rows: Sequence[torch.Tensor]) -> Statistics:
        """The worst of all rows, of which there is at least one; synchronizes the device."""
        table = (torch.stack(list(rows)) if len(rows) > 1 else rows[0].unsqueeze(0)).cpu()
        floats = table[:, : cls.FLOATS].contiguous().view(torch.float64).tolist()
        integers = table[:, cls.FLOATS :].tolist()
        worst = max(range(len(floats)), key=lambda index: floats[index][-1])
        absolute, relative, raw_relative, worst_error = (max(column) for column in zip(*floats, strict=True))
        wrong, capped = (sum(row[column] for row in integers) for column in (0, 1))
        index, *bits = integers[worst][2 : cls.INTEGERS]
        row_wrong, row, _ = max((row[cls.INTEGERS :] for row in integers), key=lambda counts: counts[0])
        worst_row = WorstRow(row_wrong, row, sum(row[-1] for row in integers))
        return cls(absolute, relative, raw_relative, worst_error, wrong, capped, index, (bits[0], bits[1]), worst_row)

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


def _statistics(
    found: torch.Tensor, expected: torch.Tensor, rule: ErrorLimits, *, has_undefined: bool
) -> list[torch.Tensor]:
    """The rows of all chunks of an output and of its worst row; nothing if both are seen to be the same.

    Args:
        found: What a function gave.
        expected: What it should have given, of the same shape and dtype.
        rule: The limits of errors.
        has_undefined: Whether some expected elements are NaN.
    """
    rows = []
    counter = RowCounter(expected, has_undefined=has_undefined)
    for (start, a), (_, b) in zip(chunks(found), chunks(expected), strict=True):
        if not (is_on_cpu(a) and has_same_bytes(a, b)):
            rows.append(_compare_chunk(a, b, rule, start, counter))
    if rows:
        rows.append(Statistics.pack_rows(counter.worst(rule.row_share)))
    return rows


def _compare_chunk(
    found: torch.Tensor, expected: torch.Tensor, rule: ErrorLimits, start: int, counter: RowCounter
) -> torch.Tensor:
    is_float = expected.dtype.is_floating_point
    a, b = to_double(found), to_double(expected)
    absolute, relative = errors(a, b)
    if not is_float:  # float64 cannot distinguish integers beyond 2**53
        absolute = torch.maximum(absolute, (found.to(torch.int64) - expected.to(torch.int64)).abs().to(torch.float64))
    largest, raw_relative = absolute.max(), relative.max()
    if is_on_cpu(absolute) and largest <= rule.atol:
        nothing = torch.zeros((), dtype=torch.float64)
        return Statistics.pack((largest, nothing, raw_relative, nothing - 1), torch.zeros(5, dtype=torch.int64))
    exceeds = absolute > rule.atol
    wrong = exceeds & (relative > rule.rtol) if is_float else exceeds
    counter.add(start, wrong)
    worst_error, index = torch.where(wrong, absolute, -1.0).max(0)
    capped = (wrong & (absolute > rule.limit)).sum()
    counts = torch.stack([wrong.sum(), capped, index + start])
    pair = [tensor.index_select(0, index.reshape(1)) for tensor in (a, b)]
    if not is_float:
        pair = [tensor.to(torch.int64).index_select(0, index.reshape(1)) for tensor in (found, expected)]
    values = torch.cat(pair).view(torch.int64)
    return Statistics.pack(
        (largest, relative.masked_fill_(~exceeds, 0).max(), raw_relative, worst_error), counts, values
    )


def errors(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Absolute and relative errors of float64 tensors: 0 where they are equal and where `b` is NaN."""
    absolute = (a - b).abs_()  # NaN where either is NaN, or both are the same infinity
    if is_on_cpu(absolute) and absolute.max().isfinite():
        return absolute, (absolute / b.abs()).nan_to_num_(nan=0.0, posinf=math.inf)
    fits = (a == b) | b.isnan()
    absolute.nan_to_num_(nan=math.inf, posinf=math.inf).masked_fill_(fits, 0)
    relative = (absolute / b.abs()).nan_to_num_(nan=math.inf, posinf=math.inf).masked_fill_(fits, 0)
    return absolute, relative


Answer = Callable[[torch.Tensor, int], torch.Tensor]
"""Gives a piece of a wrong answer in float64, from the same piece of the expected output and its start."""


def count_wrong(
    answer: Answer,
    expected: torch.Tensor,
    rule: ErrorLimits,
    *,
    has_undefined: bool,
    must_fail: Callable[[int, int], bool] | None = None,
) -> torch.Tensor:
    """Count elements of a wrong answer that differ, are wrong, exceed the limit, and rows with too many wrong ones.

    Args:
        answer: The wrong answer.
        expected: The expected output. Elements that are not finite are right in every answer.
        rule: The limits of errors.
        has_undefined: Whether some expected elements are NaN.
        must_fail: Whether so many elements that are wrong and exceed the limit decide; then the count ends, on a CPU.
    """
    total = torch.zeros(3, dtype=torch.int64, device=expected.device)
    counter = RowCounter(expected, has_undefined=has_undefined)
    for start, chunk in chunks(expected):
        b = to_double(chunk)
        absolute, relative = errors(answer(b, start), b)
        absolute.masked_fill_(~b.isfinite(), 0)
        wrong = (absolute > rule.atol) & (relative > rule.rtol)
        counter.add(start, wrong)
        total += torch.stack([(absolute > 0).sum(), wrong.sum(), (wrong & (absolute > rule.limit)).sum()])
        if is_on_cpu(total):
            _, so_far, capped = total.tolist()
            if must_fail is not None and must_fail(so_far, capped):
                break
    return torch.cat([total, counter.worst(rule.row_share)[-1:]])


def measure_extent(expected: torch.Tensor) -> Extent:
    """Measure an expected output; synchronizes the device once."""
    rows = []
    for _, chunk in chunks(expected):
        values = to_double(chunk).abs_()
        is_undefined, is_infinite = values.isnan(), values.isinf()
        counts = [flags.sum(dtype=torch.float64) for flags in (is_undefined, is_infinite)]
        rows.append(torch.stack([values.masked_fill_(is_undefined | is_infinite, 0).max(), *counts]))
    table = torch.stack(rows).tolist() if rows else []
    largest = max((largest for largest, _, _ in table), default=0.0)
    undefined, infinite = (int(sum(row[column] for row in table)) for column in (1, 2))
    return Extent(element_count(expected), undefined, infinite, largest)


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
    return compare_by(ErrorLimits.from_config(config, dtype_name(expected), extent), name, found, expected, extent)


def compare_by(rule: ErrorLimits, name: str, found: torch.Tensor, expected: torch.Tensor, extent: Extent) -> Comparison:
    """Compare by a rule; `extent` is that of the expected output. Synchronizes the device once."""
    has_undefined = extent.undefined > 0
    rows = _statistics(found, expected, rule, has_undefined=has_undefined)
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


MOST_UNDEFINED = 0.5
"""The largest share of an output's elements that may be undefined; beyond it a verdict has little meaning."""


def undefined_shares(outputs: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The share of NaN in each output; waits for the device once per output.

    Args:
        outputs: The reference's outputs by name, of any shape and dtype.

    Returns:
        Shares between 0 and 1 by name; 0 for integers and for outputs without elements.
    """
    return {name: measure_extent(tensor).undefined_share for name, tensor in outputs.items()}


def raise_if_mostly_undefined(definition: str, workload: str, outputs: Mapping[str, torch.Tensor]) -> None:
    """Refuse a workload on which the reference leaves most of an output undefined.

    Args:
        definition: The definition's name.
        workload: The workload's identifier.
        outputs: The reference's outputs by name.

    Raises:
        OutputsUndefined: More than half of the elements of an output are NaN.
    """
    shares = undefined_shares(outputs)
    if any(share > MOST_UNDEFINED for share in shares.values()):
        raise OutputsUndefined(definition, workload, shares)
