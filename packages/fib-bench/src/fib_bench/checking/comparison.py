"""Comparison of outputs with those of the reference, in the judge.

An element is wrong when its absolute error exceeds atol *and* its relative error exceeds rtol. Where the reference
gives NaN the element is undefined, and any value is right. Infinity is right where the reference has exactly the same,
and nowhere else. Integers must be equal, and so must the bytes of booleans: any other byte than 0 and 1 reads as true.
With a matched ratio some elements may be wrong, but no whole row.

Statistics stay on the device, as a row of numbers per piece, until they are read together.

*Probes.* A tolerance that suits outputs around 1 accepts anything where all outputs are tiny. So each expected output
is compared with wrong answers: zeros, each input of its size, its own elements shuffled, and itself scaled by
1 + 5 rtol. If one would pass, atol is lowered to the output's scale. Answers that pass even then are reported.

Where outputs are large, atol is raised instead: an element near zero is then a difference of large sums, and has their
rounding errors. Tensor cores cut off the bits that a float32 sum cannot hold; simulated for 28,672 products of normally
distributed halves, that leaves errors of 4.5e-5 of the outputs' standard deviation, 0.004 near zero where outputs are
around 169. The raised atol is 15 times that error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import torch
from fib_schema import Correctness
from fib_schema.definition import TORCH_DTYPE_NAMES
from fib_schema.display import counted

from ..config.model import ResolvedEvalConfig
from ..errors import OutputsUndefined

_CPU_CHUNK = 1 << 17
"""Elements in a chunk of a tensor: on a CPU they fit its cache in float64, which is 10 to 20 times as fast."""
_DEVICE_CHUNK = 1 << 22
_FLOAT4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The values of float4_e2m1 by their bits; a byte holds two, the first in its low half."""
_DTYPE_NAMES = {name: str(dtype) for dtype, name in TORCH_DTYPE_NAMES.items()}


def dtype_name(tensor: torch.Tensor) -> str:
    """The name that definitions have for the dtype of a tensor."""
    return _name_of(tensor.dtype)


@functools.cache  # each comparison asks for it about 20 times
def _name_of(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return _DTYPE_NAMES.get(name, name)


def is_float4(tensor: torch.Tensor) -> bool:
    """Whether a byte holds two elements."""
    return dtype_name(tensor) == "float4_e2m1"


def logical_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape in elements."""
    shape = tuple(tensor.shape)
    return (*shape[:-1], 2 * shape[-1]) if is_float4(tensor) and shape else shape


def element_count(tensor: torch.Tensor) -> int:
    """The number of elements."""
    return 2 * tensor.numel() if is_float4(tensor) else tensor.numel()


def is_on_cpu(tensor: torch.Tensor) -> bool:
    """Whether values can be read without synchronizing a device."""
    return tensor.device.type == "cpu"


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in one dimension; booleans as bytes, because bytes other than 0 and 1 must count as different."""
    return (tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor).reshape(-1)


def row_pieces(width: int, *tensors: torch.Tensor) -> Iterator[tuple[slice, int, list[torch.Tensor]]]:
    """Pieces of tensors of one shape and dtype: whole rows, or parts of the only one.

    Returns:
        The rows, the index of the first element, and the elements of each tensor, flat and in its dtype.
    """
    per_item = 2 if is_float4(tensors[0]) else 1
    count, size = element_count(tensors[0]), _CPU_CHUNK if is_on_cpu(tensors[0]) else _DEVICE_CHUNK
    is_one_row = count <= width
    step = size if is_one_row else max(1, size // width) * width
    items = [flat(tensor) for tensor in tensors]
    for start in range(0, count, step):
        end = min(start + step, count)
        rows = slice(0, 1) if is_one_row else slice(start // width, end // width)
        yield rows, start, [item[start // per_item : end // per_item] for item in items]


def to_double(chunk: torch.Tensor) -> torch.Tensor:
    """The elements of a flat tensor in float64; always a copy."""
    if is_float4(chunk):
        pairs = chunk.view(torch.uint8).to(torch.int64)
        values = _float4_values(chunk.device)
        return torch.stack([values[pairs & 0xF], values[pairs >> 4]], dim=-1).flatten()
    return chunk.to(torch.float64, copy=True)


@functools.cache  # copying it to a device waits for that
def _float4_values(device: torch.device) -> torch.Tensor:
    return torch.tensor(_FLOAT4, dtype=torch.float64, device=device)


def has_same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype are the same, bit by bit; waits for the device."""
    data = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in (a, b)]
    is_aligned = all(each.storage_offset() % 8 == 0 and each.numel() % 8 == 0 for each in data)
    return torch.equal(*(each.view(torch.int64) if is_aligned else each for each in data))  # 8 times as fast


WHOLE_ROW = 0.5
"""The largest share of a row's elements that may be wrong, independent of the matched ratio of the whole output.

A row that is wrong as a whole (dropped, stale, of another token) has nearly all of its elements wrong.
Rounding in an honest kernel concentrates in rows too, but reaches 10 to 20 % of a row at most: a
bfloat16 attention row in which two large values nearly cancel.
"""


def row_width(tensor: torch.Tensor) -> int:
    """The elements in a row: the last dimension that is not 1, else 1."""
    return next((size for size in reversed(logical_shape(tensor)) if size != 1), 1)


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

    @property
    def finite_share(self) -> float:
        """The share of elements that are finite."""
        return 1.0 - (self.undefined_share + self.infinite_share)


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


def row_squares(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """The sums of squared errors and of squared expected values of the rows of several calls, ``[2, rows]``.

    Elements that are NaN or infinite in `expected`, ``[calls, *shape]`` as `found`, do not count.
    """
    width = row_width(expected[0])
    squares = torch.zeros(2, element_count(expected) // width, dtype=torch.float64, device=expected.device)
    for piece in pieces(found, expected, width, may_skip=False):
        is_finite = piece.expected.isfinite()
        for sums, values in zip(squares, (piece.absolute, piece.expected), strict=True):
            sums[piece.rows] += values.where(is_finite, 0).square().sum(dim=1)
    return squares


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


def correctness_of(
    comparisons: Sequence[Comparison], config: ResolvedEvalConfig, findings: Mapping[str, object]
) -> Correctness:
    """The worst of each error with the tolerances, and the findings about many calls together."""
    extra: dict[str, object] = {
        "atol": config.atol,
        "rtol": config.rtol,
        "required_matched_ratio": config.required_matched_ratio,
        "raw_max_relative_error": max((c.raw_max_relative_error for c in comparisons), default=0.0),
        "matched_ratio": min((c.matched_ratio for c in comparisons), default=1.0),
    }
    return Correctness(
        max_relative_error=max((c.max_relative_error for c in comparisons), default=0.0),
        max_absolute_error=max((c.max_absolute_error for c in comparisons), default=0.0),
        extra=extra | ({"together": dict(findings)} if findings else {}),
    )


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


# -- probes: wrong answers that a check must reject ------------------------------------------------------------

ZEROS, SHUFFLED, SCALED, OTHER_INPUTS = "zeros", "shuffled", "scaled", "other inputs"

_SCALED_BY = 5.0
"""The relative error of the scaled answer, in units of rtol."""
_MARGIN = 0.8
"""Fraction of the atol at which the scaled answer would just fail."""
_NEAR_ZERO = 0.05
"""The share of the error that rtol allows an element of median size, which is allowed to all elements."""
_STEPS = 2
"""Rounding steps of the dtype, at the output's scale, that are always allowed."""
_SUMMATION = 1e-4
"""The share of the scale that sums in another order may differ by: float32 over 100,000 terms does by less."""
_MOST = 0.5
"""Zeros have an error of the whole scale, so an atol below that fails them."""
_SUBNORMALS = 4
"""Steps between the smallest numbers of the dtype that are always allowed."""
_SMALLEST_NORMAL = 2.0**-126
"""Kernels may flush smaller numbers to zero."""
_LEFTOVER = 4 * 2.0**-23
"""Residue of a float32 difference of equal numbers, relative to the inputs."""
_SAMPLE = 1 << 18


@attrs.frozen(kw_only=True)
class OutputCheck:
    """The check of one output of one input set, and the wrong answers that it accepts."""

    name: str
    rule: ErrorLimits
    extent: Extent
    required_matched_ratio: float | None
    error_cap: float = math.inf
    is_tightened: bool = False
    """Whether `atol` was lowered to the output's scale."""
    insensitive_to: tuple[str, ...] = ()
    """Wrong answers that pass: ``zeros``, ``input NAME``, ``shuffled``, ``scaled``."""
    rejects: tuple[str, ...] = ()
    """Wrong answers that fail. An answer that happens to be right, such as equal elements shuffled, is in neither."""

    def wrong(self, piece: Piece) -> torch.Tensor:
        """The elements of a piece that are wrong."""
        return self.rule.wrong(piece)

    def compare(self, found: torch.Tensor, expected: torch.Tensor) -> Comparison:
        """Compare an output of a solution with the examined output; synchronizes the device once."""
        return compare_by(self.rule, self.name, found, expected, self.extent, wrong=self.wrong)

    def compare_calls(self, found: torch.Tensor, expected: torch.Tensor) -> Comparison:
        """Compare the outputs of several calls on inputs of the same distribution, ``[calls, *shape]`` each.

        Elements are judged as by `alike`; rows and the limit are not, which matter only where some are wrong.
        """
        rule = attrs.evolve(self.rule, width=row_width(expected))
        return compare_by(rule, self.name, found, expected, measure_extent(expected))

    def alike(self, expected: torch.Tensor) -> OutputCheck:
        """The check of another output whose inputs have the same distribution; no probes are tried on it."""
        extent = measure_extent(expected)
        limit = limit_of(self.error_cap, extent)
        return attrs.evolve(self, rule=attrs.evolve(self.rule, limit=limit), extent=extent)

    def is_right(self, comparison: Comparison) -> bool:
        """Whether a comparison by this check is good enough."""
        return comparison.is_within(self.required_matched_ratio)

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace."""
        return {
            "atol": self.rule.atol,
            "rtol": self.rule.rtol,
            "required_matched_ratio": self.required_matched_ratio,
            "error_cap": self.error_cap,
            "is_tightened": self.is_tightened,
            "insensitive_to": list(self.insensitive_to),
            "undefined_share": self.extent.undefined_share,
            "infinite_share": self.extent.infinite_share,
        }


def examine(name: str, expected: torch.Tensor, inputs: Mapping[str, object], config: ResolvedEvalConfig) -> OutputCheck:
    """Make the check of an expected output, just tight enough to fail known wrong answers."""
    extent = measure_extent(expected)
    rule = _allow_rounding(ErrorLimits.from_config(config, expected, extent), expected, extent)
    loose = OutputCheck(
        name=name,
        rule=rule,
        extent=extent,
        required_matched_ratio=config.required_matched_ratio,
        error_cap=config.error_cap,
    )
    probes = [*_given(inputs, expected), *_derived(expected, rule.rtol)] if extent.count else []
    check = _try_out(loose, probes, expected)
    if check.insensitive_to and expected.dtype.is_floating_point:
        atol = _atol_at_scale(expected, inputs, extent, rule.rtol, config.required_matched_ratio)
        tight = attrs.evolve(loose, rule=attrs.evolve(rule, atol=min(rule.atol, atol)), is_tightened=atol < rule.atol)
        tight = _try_out(tight, probes, expected)
        if tight.insensitive_to != check.insensitive_to:
            return tight  # one that rejects no more wrong answers only harms honest ones
    return check


_Checked = TypeVar("_Checked", bound=OutputCheck)


def with_blind_spots(check: _Checked, expected: torch.Tensor, inputs: Mapping[str, object]) -> _Checked:
    """The check with the result of trying zeros and each input as the output."""
    return _try_out(check, list(_given(inputs, expected)) if check.extent.count else [], expected)


def insensitive_to_all(checks: Collection[OutputCheck]) -> tuple[str, ...]:
    """Wrong answers that pass a check of this output and fail none, whatever the input distribution."""
    passing = dict.fromkeys(probe for check in checks for probe in check.insensitive_to)
    rejected = {probe for check in checks for probe in check.rejects}
    return tuple(probe for probe in passing if probe not in rejected)


Answer = Callable[[torch.Tensor, int], torch.Tensor]
"""Gives a piece of a wrong answer in float64, from the same piece of the expected output and its start."""


@attrs.frozen
class _Probe:
    """A wrong answer."""

    name: str
    answer: Answer
    is_derived: bool = False
    """Derived from the expected output: where both are equal it is not a wrong answer."""


def _given(inputs: Mapping[str, object], expected: torch.Tensor) -> Iterator[_Probe]:
    """Answers that do not depend on the output: zeros, and each input that could be returned."""
    yield _Probe(ZEROS, lambda b, _: torch.zeros_like(b))
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and _could_be_returned(value, expected):
            yield _Probe(f"input {name}", _elements_of(value))


def _derived(expected: torch.Tensor, rtol: float) -> Iterator[_Probe]:
    yield _shuffled(expected)
    if rtol > 0:
        factor = 1 + _SCALED_BY * rtol
        yield _Probe(SCALED, lambda b, _: b * factor, is_derived=True)


def _could_be_returned(value: torch.Tensor, expected: torch.Tensor) -> bool:
    is_alike = value.dtype.is_floating_point == expected.dtype.is_floating_point
    return is_alike and is_float4(value) == is_float4(expected) and value.numel() == expected.numel() > 0


def _elements_of(value: torch.Tensor) -> Answer:
    items, per_item = flat(value), 2 if is_float4(value) else 1
    return lambda b, start: to_double(items[start // per_item : (start + b.numel()) // per_item])


def _shuffled(expected: torch.Tensor) -> _Probe:
    """The elements half a tensor ahead, shuffled within a chunk; non-finite elements stay."""
    per_item = 2 if is_float4(expected) else 1
    items, dtype = flat(expected), flat(expected).dtype
    if items.itemsize == 1:
        items = items.view(torch.uint8)  # not every device can pick elements of the smallest floats

    def answer(b: torch.Tensor, start: int) -> torch.Tensor:
        places = _order(b.numel() // per_item, expected.device) + (start // per_item + items.numel() // 2)
        a = to_double(items.index_select(0, places.remainder_(items.numel())).view(dtype))
        return torch.where(a.isfinite(), a, b)

    return _Probe(SHUFFLED, answer, is_derived=True)


@functools.lru_cache(maxsize=2)  # all chunks but the last are of one size, and making it costs more than using it
def _order(count: int, device: torch.device) -> torch.Tensor:
    return torch.randperm(count, generator=torch.Generator(device).manual_seed(0), device=device)


def _try_out(check: _Checked, probes: Sequence[_Probe], expected: torch.Tensor) -> _Checked:
    passing, failing = [], []
    for probe in probes:
        comparison = _compare_answer(check, probe.answer, expected)
        if not comparison.is_within(check.required_matched_ratio):
            failing.append(probe.name)
        elif comparison.max_absolute_error or not probe.is_derived:
            passing.append(probe.name)
    return attrs.evolve(check, insensitive_to=tuple(passing), rejects=tuple(failing))


def _compare_answer(check: OutputCheck, answer: Answer, expected: torch.Tensor) -> Comparison:
    """Compare a wrong answer, on a CPU until it must fail; synchronizes a device once.

    Undefined and infinite elements count as right: an exploit can reproduce infinities.
    """
    rule = check.rule
    found: list[torch.Tensor] = []
    for rows, start, (chunk,) in row_pieces(rule.width, expected):
        b = to_double(chunk)
        piece = Piece.of(rows, start, answer(b, start), b)
        piece.absolute.masked_fill_(~piece.expected.isfinite(), 0)
        found.append(statistics_of(piece, rule, check.wrong(piece), rule.exceeds(piece)))
        if is_on_cpu(expected):
            comparison = comparison_of(check.name, found[-1:], expected, check.extent, rule, "")
            if not comparison.is_within(check.required_matched_ratio):
                return comparison
    return comparison_of(check.name, found, expected, check.extent, rule, "")


def _allow_rounding(rule: ErrorLimits, expected: torch.Tensor, extent: Extent) -> ErrorLimits:
    """The rule with an atol that is not below the rounding errors of sums as large as the outputs."""
    share = _NEAR_ZERO * rule.rtol
    if not expected.dtype.is_floating_point or share * extent.largest <= rule.atol:
        return rule
    return attrs.evolve(rule, atol=max(rule.atol, share * _quantile(expected, extent, 0.5)))


def _atol_at_scale(
    expected: torch.Tensor, inputs: Mapping[str, object], extent: Extent, rtol: float, ratio: float | None
) -> float:
    """An atol that fails zeros and the scaled answer, and no honest rounding; infinite if the output has no scale.

    The scale is the magnitude that all elements stay below but those that may be wrong. Where none
    may, that is the largest of all: a row of small numbers beside one of large numbers has the
    rounding errors of its own, so that a mean over both would be too strict for the second.
    """
    scale = _quantile(expected, extent, ratio)
    if scale == 0:
        return math.inf
    eps, smallest = _steps_of(expected)
    share = min(_MOST, max(_MARGIN * _SCALED_BY * rtol, _STEPS * eps, _SUMMATION))
    extents = [measure_extent(v) for v in inputs.values() if isinstance(v, torch.Tensor) and v.dtype.is_floating_point]
    leftover = _LEFTOVER * max((extent.largest for extent in extents), default=0.0)
    return max(share * scale, _SUBNORMALS * smallest, _SMALLEST_NORMAL, leftover)


def _steps_of(tensor: torch.Tensor) -> tuple[float, float]:
    """The largest rounding step of a dtype, relative, and its smallest, absolute."""
    if is_float4(tensor):
        return 0.5, 0.5
    info = torch.finfo(tensor.dtype)
    return info.eps, info.smallest_normal * info.eps


def _quantile(expected: torch.Tensor, extent: Extent, ratio: float | None) -> float:
    """The magnitude that as many finite elements exceed as may be wrong; 0 if all may be wrong."""
    finite = extent.defined - extent.infinite
    may_be_wrong = 0.0 if ratio is None else (1 - ratio) * extent.defined
    if may_be_wrong == 0:
        return extent.largest
    if may_be_wrong >= finite:
        return 0.0
    items = flat(expected)
    sample = to_double(items[:: math.ceil(items.numel() / _SAMPLE) | 1]).abs_()  # odd: rows have even lengths
    sample = sample.masked_fill_(sample.isinf(), math.nan)
    return float(sample.nanquantile(1 - may_be_wrong / finite, interpolation="lower").nan_to_num(0.0))
