"""Rows of flat tensors. Sums per row over pieces that may begin and end inside a row.

A row is a slice along the last dimension: what one token, one request or one head gets. A matched
ratio over a whole output would accept a few rows that are wrong throughout, so wrong elements are
also counted row by row, on the device, and read together with the other statistics.
"""

from __future__ import annotations

import attrs
import torch

from .elements import chunks, element_count, logical_shape, to_double

WHOLE_ROW = 0.5
"""The largest share of a row's elements that may be wrong, independent of the matched ratio of the whole output.

A row that is wrong as a whole (dropped, stale, of another token) has nearly all of its elements wrong.
Rounding in an honest kernel concentrates in rows too, but reaches 10 to 20 % of a row at most: a
bfloat16 attention row in which two large values nearly cancel.
"""


def row_width(tensor: torch.Tensor) -> int:
    """The elements in a row: the last dimension that is not 1, else 1."""
    return next((size for size in reversed(logical_shape(tensor)) if size != 1), 1)


class RowSums:
    """Sums of columns of numbers, one sum per row.

    Args:
        width: The elements in a row.
        rows: The number of rows.
        columns: How many numbers each element has.
        device: Where the numbers are.
    """

    def __init__(self, width: int, rows: int, columns: int, device: torch.device) -> None:
        self._width = max(width, 1)
        self.sums = torch.zeros(columns, rows, dtype=torch.float64, device=device)
        """``[columns, rows]``"""

    def add(self, start: int, *columns: torch.Tensor) -> None:
        """Add consecutive elements.

        Args:
            start: The index of the first element.
            columns: ``[elements]`` each, one tensor per column, of any dtype.
        """
        first, lead = divmod(start, self._width)
        count = columns[0].numel()
        head = min(count, self._width - lead) if lead else 0
        whole = (count - head) // self._width
        rows, end = first + (head > 0), head + whole * self._width
        for sums, values in zip(self.sums, columns, strict=True):
            if head:
                sums[first] += values[:head].sum()
            if whole:
                sums[rows : rows + whole] += values[head:end].view(whole, self._width).sum(dim=1)
            if end < count:
                sums[rows + whole] += values[end:].sum()


@attrs.frozen
class WorstRow:
    """The row with the most wrong elements, and how many rows have too many."""

    wrong: int = 0
    index: int = 0
    bad_rows: int = 0

    def explain(self) -> str:
        """Say which row it is."""
        rows = "1 row" if self.bad_rows == 1 else f"{self.bad_rows} rows"
        return f"in {rows} more elements are wrong than may be; worst row {self.index} with {self.wrong}"


NO_ROW = WorstRow()
"""Result for outputs without a wrong row."""


def pack_worst_row(wrong: torch.Tensor, defined: torch.Tensor | int, share: float) -> torch.Tensor:
    """The fields of a `WorstRow` as integers, ``[3]``; they stay on the device.

    Args:
        wrong: ``[rows]``, the wrong elements of each row; at least one row.
        defined: ``[rows]``, the elements of each row that the reference defines; a number if all rows have as many.
        share: The largest share of them that may be wrong; one element may be in any case.
    """
    worst, index = wrong.max(dim=0)
    allowed = max(1.0, defined * share) if isinstance(defined, int) else (defined * share).clamp(min=1.0)
    return torch.stack([worst.long(), index, (wrong > allowed).sum()])


class RowCounter:
    """Counts of the wrong elements of each row of an output.

    Args:
        expected: The output.
        has_undefined: Whether some of its elements are NaN, so that rows have fewer elements that count.
    """

    def __init__(self, expected: torch.Tensor, *, has_undefined: bool) -> None:
        self._width = row_width(expected)
        self._rows = element_count(expected) // max(self._width, 1)
        self._wrong = RowSums(self._width, self._rows, 1, expected.device)
        self._expected = expected if has_undefined else None

    def add(self, start: int, wrong: torch.Tensor) -> None:
        """Count a piece.

        Args:
            start: The index of its first element.
            wrong: ``[elements]``, which are wrong.
        """
        self._wrong.add(start, wrong)

    def worst(self, share: float) -> torch.Tensor:
        """The worst row as `pack_worst_row` packs it; it stays on the device.

        Args:
            share: The largest share of a row's elements that may be wrong.
        """
        return pack_worst_row(self._wrong.sums[0], self._defined(), share)

    def _defined(self) -> torch.Tensor | int:
        if self._expected is None:
            return self._width
        defined = RowSums(self._width, self._rows, 1, self._expected.device)
        for start, chunk in chunks(self._expected):
            defined.add(start, ~to_double(chunk).isnan())
        return defined.sums[0]
