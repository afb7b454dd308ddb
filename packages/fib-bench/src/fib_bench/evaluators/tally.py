"""Statistics over outputs that are too large to compare as a whole, by rules of any kind."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import torch

from ..checking.comparison import Statistics, errors
from ..checking.elements import (
    WHOLE_ROW,
    chunk_size,
    flat,
    has_same_bytes,
    is_float4,
    is_on_cpu,
    pack_worst_row,
    to_double,
)


@attrs.frozen(eq=False)
class Piece:
    """Some rows of an output in float64, found and expected."""

    rows: slice
    found: torch.Tensor
    """``[rows, width]``"""
    expected: torch.Tensor
    absolute: torch.Tensor
    """Errors: 0 where both are the same or `expected` is NaN, infinite where either alone is NaN or infinite."""
    relative: torch.Tensor
    start: int
    """The index of the first element."""
    is_float: bool


def pieces(found: torch.Tensor, expected: torch.Tensor, width: int, *, may_skip: bool = True) -> Iterator[Piece]:
    """Iterate over the rows of an output in pieces, so that temporaries stay small.

    Args:
        found: What a function gave.
        expected: What it should have, of the same shape and dtype.
        width: The elements in a row; rows lie one behind the other.
        may_skip: Whether to pass over what is the same bit by bit, where that is quickly seen.
    """
    per_item = 2 if is_float4(expected) else 1
    a, b = flat(found), flat(expected)
    step = max(1, chunk_size(expected) // max(width, 1)) * width // per_item
    for start in range(0, b.numel(), max(step, 1)):
        parts = [tensor[start : start + step] for tensor in (a, b)]
        if may_skip and is_on_cpu(b) and has_same_bytes(*parts):
            continue
        a_rows, b_rows = (to_double(part).view(-1, width) for part in parts)
        first = start * per_item // width
        rows = slice(first, first + len(b_rows))
        absolute, relative = errors(a_rows, b_rows)
        is_float = expected.dtype.is_floating_point
        yield Piece(rows, a_rows, b_rows, absolute, relative, start * per_item, is_float)


def statistics_of(
    piece: Piece, wrong: torch.Tensor, limit: float, row_share: float = WHOLE_ROW
) -> tuple[torch.Tensor, torch.Tensor]:
    """The statistics of a piece, packed for `comparison_of`; they stay on the device.

    Args:
        piece: Some rows.
        wrong: ``[rows, width]``, the elements that are wrong.
        limit: The error that no element may have.
        row_share: The largest share of a row's defined elements that may be wrong; one may be in any case.
    """
    defined = (~piece.expected.isnan()).sum(dim=1)
    worst = pack_worst_row(wrong.sum(dim=1), defined, row_share)
    worst[1] += piece.rows.start
    return _elements(piece, wrong, limit), Statistics.pack_rows(worst)


def _elements(piece: Piece, wrong: torch.Tensor, limit: float) -> torch.Tensor:
    absolute, a, b = (tensor.flatten() for tensor in (piece.absolute, piece.found, piece.expected))
    wrong = wrong.flatten()
    worst_error, index = torch.where(wrong, absolute, -1.0).max(0)
    counts = torch.stack([wrong.sum(), (wrong & (absolute > limit)).sum(), index + piece.start])
    values = torch.cat([tensor.index_select(0, index.reshape(1)) for tensor in (a, b)])
    bits = values.view(torch.int64) if piece.is_float else values.to(torch.int64)
    relative = piece.relative.flatten()
    noticed = torch.where(wrong, relative, 0.0).max()
    return Statistics.pack((absolute.max(), noticed, relative.max(), worst_error), counts, bits)
