"""Elements of tensors of any dtype. Flat chunks, so that temporaries stay small."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import attrs
import torch
from fib_schema.definition import TORCH_DTYPE_NAMES

_CPU_CHUNK = 1 << 17
"""Elements in a chunk: on a CPU they fit its cache in float64, which is 10 to 20 times as fast."""
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
    """Whether a byte holds two elements; older versions of torch do not have the dtype."""
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


def chunk_size(tensor: torch.Tensor) -> int:
    """The number of elements in a chunk of the tensor."""
    return _CPU_CHUNK if is_on_cpu(tensor) else _DEVICE_CHUNK


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in one dimension; booleans as bytes, because bytes other than 0 and 1 must count as different."""
    return (tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor).reshape(-1)


def chunks(tensor: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Flat pieces, each with the index of its first element."""
    per_item = 2 if is_float4(tensor) else 1
    items, size = flat(tensor), chunk_size(tensor) // per_item
    for start in range(0, items.numel(), size):
        yield start * per_item, items[start : start + size]


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
    """Whether two flat tensors of one dtype are the same, bit by bit; waits for the device."""
    return torch.equal(_as_words(a), _as_words(b))


def _as_words(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a flat tensor as int64 where alignment permits, which is 8 times as fast."""
    data = tensor.view(torch.uint8)
    is_aligned = data.storage_offset() % 8 == 0 and data.numel() % 8 == 0
    return data.view(torch.int64) if is_aligned else data


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
