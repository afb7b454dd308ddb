"""Comparison of outputs with those of the reference, in the judge.

An element is wrong when its absolute error exceeds atol *and* its relative error exceeds rtol. Where the reference
gives NaN the element is undefined, and any value is right. Infinity is right where the reference has exactly the same,
and nowhere else. Integers must be equal, and so must the bytes of booleans: any other byte than 0 and 1 reads as true.
With a matched ratio some elements may be wrong, but no whole row.

Statistics stay on the device, as a row of numbers per piece, until they are read together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from fib_schema.display import counted

from ..config.model import ResolvedEvalConfig
from ..errors import OutputsUndefined
from .elements import (
    WHOLE_ROW,
    dtype_name,
    element_count,
    has_same_bytes,
    is_on_cpu,
    logical_shape,
    row_pieces,
    row_width,
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


def limit_of(error_cap: float, extent: Extent) -> float:
    """The error cap of an output in absolute terms: a multiple of its largest magnitude."""
    return math.inf if math.isinf(error_cap) else error_cap * extent.largest


@attrs.frozen(eq=False)
class Piece:
    """Some rows of an output in float64, found and expected."""

    rows: slice
    found: torch.Tensor
    """``[rows, width]``; part of the row where the output has only one."""
    expected: torch.Tensor
    absolute: torch.Tensor
    """Errors: 0 where both are the same or `expected` is NaN, infinite where either alone is NaN or infinite."""
    relative: torch.Tensor
    start: int
    """The index of the first element."""
    integers: tuple[torch.Tensor, torch.Tensor] | None = None
    """Both as int64 where the output has integers: float64 cannot distinguish those beyond 2**53."""

    @classmethod
    def of(cls, rows: slice, start: int, found: torch.Tensor, expected: torch.Tensor) -> Piece:
        """The piece of flat tensors in float64."""
        a, b = (tensor.view(rows.stop - rows.start, -1) for tensor in (found, expected))
        return cls(rows, a, b, *errors(a, b), start)

    def with_integers(self, found: torch.Tensor, expected: torch.Tensor) -> Piece:
        """The piece of flat tensors of integers."""
        a, b = (tensor.to(torch.int64).view_as(self.found) for tensor in (found, expected))
        return attrs.evolve(self, absolute=torch.maximum(self.absolute, (a - b).abs().double()), integers=(a, b))


def pieces(found: torch.Tensor, expected: torch.Tensor, width: int, *, may_skip: bool = True) -> Iterator[Piece]:
    """Iterate over the rows of an output in pieces, so that temporaries stay small.

    With `may_skip`, what is the same bit by bit is passed over where that is quickly seen.
    """
    for rows, start, (a, b) in row_pieces(width, found, expected):
        if may_skip and is_on_cpu(b) and has_same_bytes(a, b):
            continue
        piece = Piece.of(rows, start, to_double(a), to_double(b))
        yield piece if expected.dtype.is_floating_point else piece.with_integers(a, b)


def errors(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Absolute and relative errors of float64 tensors: 0 where they are equal and where `b` is NaN."""
    absolute = (a - b).abs_()  # NaN where either is NaN, or both are the same infinity
    if is_on_cpu(absolute) and absolute.max().isfinite():
        return absolute, (absolute / b.abs()).nan_to_num_(nan=0.0, posinf=math.inf)
    fits = (a == b) | b.isnan()
    absolute.nan_to_num_(nan=math.inf, posinf=math.inf).masked_fill_(fits, 0)
    relative = (absolute / b.abs()).nan_to_num_(nan=math.inf, posinf=math.inf).masked_fill_(fits, 0)
    return absolute, relative


@attrs.frozen
class ErrorLimits:
    """The limits beyond which an element or a row is wrong."""

    width: int
    """The elements in a row."""
    atol: Any
    """A number, or one for each row: ``[rows]``, float64."""
    rtol: float
    limit: float = math.inf
    """The error that no element may have, however many match."""
    row_share: float = WHOLE_ROW
    """The largest share of a row's elements that may be wrong, however many match in other rows."""

    @classmethod
    def from_config(cls, config: ResolvedEvalConfig, expected: torch.Tensor, extent: Extent) -> ErrorLimits:
        """The limits for an output by the configuration."""
        tolerance = config.tolerance(dtype_name(expected))
        return cls(row_width(expected), tolerance.atol, tolerance.rtol, limit_of(config.error_cap, extent))

    def exceeds(self, piece: Piece) -> torch.Tensor:
        """The elements of a piece whose absolute error is larger than `atol`."""
        atol = self.atol[piece.rows, None] if isinstance(self.atol, torch.Tensor) else self.atol
        return piece.absolute > atol

    def wrong(self, piece: Piece) -> torch.Tensor:
        """The elements of a piece that are wrong."""
        return self.exceeds(piece) & (piece.relative > self.rtol) if piece.integers is None else self.exceeds(piece)

    def is_bad_row(self, wrong: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        """Whether of ``[rows, width]`` too many elements are wrong in a row, ``[rows]``; one may be in any case."""
        return wrong > ((~expected.isnan()).sum(dim=1) * self.row_share).clamp(min=1.0)

    def explain(self) -> str:
        """The errors that an element may have, in words."""
        if isinstance(self.atol, torch.Tensor):
            return f"relative error {self.rtol:.4g} or the absolute error of its row"
        return f"absolute error {self.atol:.4g} or relative error {self.rtol:.4g}"


def statistics_of(piece: Piece, rule: ErrorLimits, wrong: torch.Tensor, exceeds: torch.Tensor) -> torch.Tensor:
    """The statistics of a piece as int64, ``[15]``, so that one transfer reads it; they stay on the device.

    These are three errors and the largest of a wrong element (-1 if none is), as the bits of float64; the numbers of
    wrong and of capped elements; the number of wrong elements in the worst row, its index, and the number of bad rows;
    index, found and expected value of the worst and of the first wrong element, in pairs, the values as integers or as
    the bits of float64.

    Shapes:
        wrong: ``[rows, width]``, the elements that are wrong.
        exceeds: ``[rows, width]``, the elements whose relative errors count.
    """
    largest, raw_relative = piece.absolute.max(), piece.relative.max()
    if is_on_cpu(wrong) and not exceeds.any():
        nothing = torch.zeros((), dtype=torch.float64)
        floats = torch.stack([largest, nothing, raw_relative, nothing - 1])
        return torch.cat([floats.view(torch.int64), torch.zeros(11, dtype=torch.int64)])
    worst_error, index = torch.where(wrong, piece.absolute, -1.0).flatten().max(0)
    places = torch.stack([index, wrong.flatten().to(torch.uint8).argmax()])
    pair = piece.integers or (piece.found, piece.expected)
    values = torch.cat([part.flatten().index_select(0, places) for part in pair])
    by_row = wrong.sum(dim=1)
    row_wrong, row = by_row.max(dim=0)
    bad_rows = rule.is_bad_row(by_row, piece.expected).sum()
    relative = torch.where(exceeds, piece.relative, 0.0).max()
    floats = torch.stack([largest, relative, raw_relative, worst_error])
    capped = (wrong & (piece.absolute > rule.limit)).sum()
    counts = torch.stack([wrong.sum(), capped, row_wrong, row + piece.rows.start, bad_rows])
    return torch.cat([floats.view(torch.int64), counts, places + piece.start, values.view(torch.int64)])


def measure_extent(expected: torch.Tensor) -> Extent:
    """Measure an expected output; synchronizes the device once."""
    table = []
    for _, _, (chunk,) in row_pieces(element_count(expected), expected):
        values = to_double(chunk).abs_()
        is_undefined, is_infinite = values.isnan(), values.isinf()
        counts = [flags.sum(dtype=torch.float64) for flags in (is_undefined, is_infinite)]
        table.append(torch.stack([values.masked_fill_(is_undefined | is_infinite, 0).max(), *counts]))
    columns = torch.stack(table).T.tolist() if table else [[0.0]] * 3
    return Extent(element_count(expected), int(sum(columns[1])), int(sum(columns[2])), max(columns[0]))


@attrs.frozen
class Comparison:
    """The comparison of one output with its reference."""

    name: str
    count: int
    wrong: int
    max_absolute_error: float = 0.0
    max_relative_error: float = 0.0
    """Over the elements whose absolute error exceeds atol."""
    raw_max_relative_error: float = 0.0
    first: str = ""
    """The first wrong element in words; empty if none is wrong."""
    worst: str = ""
    """The worst element, likewise."""
    capped: int = 0
    """Wrong elements whose error exceeds the limit."""
    limit: float = math.inf
    """The error that no element may have, however many match."""
    undefined: int = 0
    """Elements for which the reference gives NaN; never wrong."""
    bad_rows: int = 0
    worst_row: tuple[int, int] = (0, 0)
    """The row with the most wrong elements: how many they are, and its index."""
    allowed: str = ""
    """The errors that an element may have, in words; empty where elements must be equal."""

    @property
    def matched_ratio(self) -> float:
        """The share of defined elements that are right."""
        return 1.0 - self.wrong / (self.count - self.undefined) if self.wrong else 1.0

    def is_within(self, required_matched_ratio: float | None) -> bool:
        """Whether enough elements are right, no error exceeds the limit, and no row is wrong."""
        defined = self.count - self.undefined
        return is_enough(self.wrong, self.capped, self.bad_rows, defined, required_matched_ratio)

    def explain(self) -> str:
        """Describe the comparison in short lines; the first one names the first wrong element."""
        if self.wrong == 0:
            return f"{self.name}: all {self.count} elements match"
        text = f"{self.name}: {self.wrong} of {self.count} wrong; first {self.first}"
        if self.worst != self.first:
            text += f"\n  worst: {self.worst}"
        if self.allowed:
            text += f"\n  allowed: {self.allowed}"
        if self.capped:
            text += f"\n  {self.capped} beyond the error cap, which allows {self.limit:.4g}"
        if self.bad_rows:
            rows, (wrong, index) = counted(self.bad_rows, "row"), self.worst_row
            text += f"\n  in {rows} more elements are wrong than may be; worst row {index} with {wrong}"
        return text


def is_enough(wrong: int, capped: int, bad_rows: int, defined: int, required_matched_ratio: float | None) -> bool:
    """Whether an output with these counts of wrong elements and rows is accepted."""
    if required_matched_ratio is None or wrong == 0:
        return wrong == 0
    return capped == 0 and bad_rows == 0 and 1.0 - wrong / defined >= required_matched_ratio


def compare_by(
    rule: ErrorLimits,
    name: str,
    found: torch.Tensor,
    expected: torch.Tensor,
    extent: Extent,
    *,
    wrong: Callable[[Piece], torch.Tensor] | None = None,
) -> Comparison:
    """Compare by a rule, or by what `wrong` says is wrong; synchronizes the device once."""
    is_wrong = wrong or rule.wrong
    rows = [
        statistics_of(piece, rule, is_wrong(piece), rule.exceeds(piece))
        for piece in pieces(found, expected, rule.width)
    ]
    return comparison_of(name, rows, expected, extent, rule, rule.explain() if expected.is_floating_point() else "")


def comparison_of(
    name: str, rows: Sequence[torch.Tensor], expected: torch.Tensor, extent: Extent, rule: ErrorLimits, allowed: str
) -> Comparison:
    """Combine the results of `statistics_of` for all pieces of an output; synchronizes the device once.

    Only the shape and the dtype of `expected` matter; `allowed` says in words which errors an element may have.
    """
    same = Comparison(name, extent.count, 0, limit=rule.limit, undefined=extent.undefined, allowed=allowed)
    if not rows:
        return same
    table = (torch.stack(list(rows)) if len(rows) > 1 else rows[0].unsqueeze(0)).cpu()
    floats = table[:, :4].contiguous().view(torch.float64).tolist()
    absolute, relative, raw_relative, _ = (max(column) for column in zip(*floats, strict=True))
    worst = max(range(len(floats)), key=lambda index: floats[index][-1])
    integers = table[:, 4:].tolist()
    wrong, capped, bad_rows = (sum(row[column] for row in integers) for column in (0, 1, 4))
    row_wrong, row_index = max((row[2:4] for row in integers), key=lambda counts: counts[0])
    if extent.count <= rule.width and wrong:  # the only row, of which each piece has seen a part
        row_wrong, bad_rows = wrong, int(wrong > max(1.0, extent.defined * rule.row_share))
    return attrs.evolve(
        same,
        wrong=wrong,
        max_absolute_error=absolute,
        max_relative_error=relative,
        raw_max_relative_error=raw_relative,
        first=_describe(expected, *next(row for row in integers if row[0])[6::2]) if wrong else "",
        worst=_describe(expected, *integers[worst][5::2]) if wrong else "",
        capped=capped,
        bad_rows=bad_rows,
        worst_row=(row_wrong, row_index),
    )


def _describe(expected: torch.Tensor, rest: int, *values: int) -> str:
    place: list[int] = []
    for size in reversed(logical_shape(expected)):
        rest, index = divmod(rest, size)
        place.insert(0, index)
    bits = torch.tensor(values)
    found, wanted = (bits.view(torch.float64) if expected.dtype.is_floating_point else bits).tolist()
    return f"{place} is {_shortly(found, wanted)}"


def _shortly(found: float, wanted: float) -> str:
    """Two numbers with 4 significant digits, with their difference where they look the same; integers as they are."""
    if isinstance(found, int):
        return f"{found}, not {wanted}"
    short, other = f"{found:.4g}", f"{wanted:.4g}"
    return f"{short}, not {other}" if short != other else f"{short}, and wrong by {found - wanted:.4g}"


MOST_UNDEFINED = 0.5
"""The largest share of an output's elements that may be undefined; beyond it a verdict has little meaning."""


def raise_if_mostly_undefined(definition: str, workload: str, outputs: Mapping[str, torch.Tensor]) -> None:
    """Refuse a workload on which the reference leaves more than half of an output undefined, by `OutputsUndefined`."""
    shares = {name: measure_extent(tensor).undefined_share for name, tensor in outputs.items()}
    if any(share > MOST_UNDEFINED for share in shares.values()):
        raise OutputsUndefined(definition, workload, shares)
