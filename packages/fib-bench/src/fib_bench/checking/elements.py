"""Elements of tensors of any dtype. Flat chunks, so that temporaries stay small."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from fib_schema.definition import TORCH_DTYPE_NAMES

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
    """Whether two flat tensors of one dtype are the same, bit by bit; waits for the device."""
    return torch.equal(_as_words(a), _as_words(b))


def _as_words(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a flat tensor as int64 where alignment permits, which is 8 times as fast."""
    data = tensor.contiguous().view(torch.uint8)  # outputs of no dimension of several calls lie apart
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
