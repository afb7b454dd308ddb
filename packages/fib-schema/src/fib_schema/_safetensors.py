"""Header of a safetensors file: names, dtypes and shapes, without reading a tensor or importing torch.

Source: the safetensors format: 8 bytes of length (little-endian), that much JSON, then the data.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

from .definition import DType
from .regular_files import open_regular

MAX_HEADER_BYTES = 100_000_000
"""The limit of the format itself."""

STORED_DTYPES: Mapping[DType, frozenset[str]] = MappingProxyType({
    DType.FLOAT32: frozenset({"F32"}),
    DType.FLOAT16: frozenset({"F16"}),
    DType.BFLOAT16: frozenset({"BF16"}),
    DType.FLOAT8_E4M3FN: frozenset({"F8_E4M3"}),
    DType.FLOAT8_E5M2: frozenset({"F8_E5M2"}),
    DType.FLOAT4_E2M1: frozenset({"F4", "U8", "I8"}),
    DType.INT64: frozenset({"I64"}),
    DType.INT32: frozenset({"I32"}),
    DType.INT16: frozenset({"I16"}),
    DType.INT8: frozenset({"I8"}),
    DType.BOOL: frozenset({"BOOL"}),
})  # fmt: skip
"""The names of each dtype in a file; fp4 may also be stored two to a byte."""

_BITS: Mapping[str, int] = MappingProxyType({
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16,
    "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "I8": 8, "U8": 8, "BOOL": 8, "F4": 4,
})  # fmt: skip


class BadHeader(ValueError):
    """The file is not a complete safetensors file; the text says why."""


@attrs.frozen
class StoredTensor:
    """Dtype and shape of a tensor in a file."""

    dtype: str
    shape: tuple[int, ...]


def read_header(path: str) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file.

    Raises:
        BadHeader: It is not a complete safetensors file.
        OSError: It cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise BadHeader(f"its header would take {length} bytes of {size}; it is cut off or another format")
        text = file.read(length)
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadHeader(f"its header is not JSON ({error})") from error
    if not isinstance(plain, dict):
        raise BadHeader("its header is not a JSON object")
    data_bytes = size - 8 - length
    tensors = {name: _tensor(name, item, data_bytes) for name, item in plain.items() if name != "__metadata__"}
    _check_order({name: plain[name]["data_offsets"] for name in tensors}, data_bytes)
    return tensors


def _check_order(offsets: Mapping[str, list[int]], data_bytes: int) -> None:
    """Check that the tensors fill the data without overlaps and gaps, which the format requires."""
    done = 0
    for name, (start, end) in sorted(offsets.items(), key=lambda item: item[1]):
        if start != done:
            relation = "overlaps the one before it" if start < done else "leaves a gap after the one before it"
            raise BadHeader(f"tensor {name!r} begins at byte {start} of the data and not at {done}: it {relation}")
        done = end
    if done != data_bytes:
        raise BadHeader(f"its tensors take {done} bytes, and {data_bytes} follow the header")


def _tensor(name: str, plain: Any, data_bytes: int) -> StoredTensor:
    match plain:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(end)]} if all(
            type(size) is int and size >= 0 for size in shape
        ):
            pass
        case _:
            raise BadHeader(f"its header does not give dtype, shape and data_offsets of tensor {name!r}")
    if not 0 <= start <= end <= data_bytes:
        raise BadHeader(f"tensor {name!r} would end at byte {end} of {data_bytes}; the file is cut off")
    wanted = -(-math.prod(shape) * _BITS.get(dtype, 0) // 8)
    if dtype in _BITS and wanted != end - start:
        raise BadHeader(f"tensor {name!r} has {end - start} bytes, and {dtype} of shape {shape} takes {wanted}")
    return StoredTensor(dtype, tuple(shape))
