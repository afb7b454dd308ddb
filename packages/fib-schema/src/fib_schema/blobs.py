"""Tensors of workloads in safetensors files; loading and saving needs the extra ``blobs`` and imports torch."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import attrs
import msgspec

from ._record import relative_path_problem
from .data_files import is_below
from .errors import FibError
from .files import atomic_write, open_regular
from .reader import LFS_POINTER

if TYPE_CHECKING:
    import torch


@attrs.frozen
class BlobError(FibError, ValueError):
    """A blob that is missing, unreadable or outside of the data set."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"blob {self.path!r}: {self.problem}"


def load_tensor(root: Path | None, path: str, tensor_key: str) -> torch.Tensor:
    """Read one tensor of a blob to the CPU.

    Args:
        root: The data set's folder.
        path: The blob's path relative to it.
        tensor_key: The tensor's name in the file.

    Raises:
        BlobError: There is no such file or tensor, or the path leaves the data set.
    """
    from safetensors import safe_open

    with _explained(path), safe_open(_file(root, path), framework="pt") as content:
        if tensor_key not in content.keys():  # noqa: SIM118 it is not a mapping
            raise BlobError(path, f"has no tensor {tensor_key!r} (it has {', '.join(sorted(content.keys()))})")
        tensor: torch.Tensor = content.get_tensor(tensor_key)
        return tensor


def load_tensors(root: Path | None, path: str) -> dict[str, torch.Tensor]:
    """Read all tensors of a blob to the CPU.

    Raises:
        BlobError: There is no such file, it is no safetensors file, or its path leaves the set.
    """
    from safetensors.torch import load_file

    with _explained(path):
        return load_file(_file(root, path))


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turn errors of reading a blob into a `BlobError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise BlobError(path, "the file does not exist") from error
    except OSError as error:
        raise BlobError(path, f"cannot be read: {error.strerror or error}") from error
    except Exception as error:
        if isinstance(error, BlobError):
            raise
        raise BlobError(path, f"is not a valid safetensors file: {error}") from error


def save_tensors(file: Path, path: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors to a new file, durably and atomically.

    Args:
        file: The file.
        path: Its path in errors.
        tensors: The tensors by name; they are stored contiguously.

    Raises:
        BlobError: The file exists.
        OSError: It could not be written.
    """
    try:
        atomic_write(file, format_tensors(tensors), durable=True, exclusive=True)
    except FileExistsError as error:
        raise BlobError(path, "the file exists already; blobs are never overwritten") from error


def format_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The content of a safetensors file of contiguous copies of tensors."""
    from safetensors.torch import save

    data: bytes = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    return data


def _file(root: Path | None, path: str) -> Path:
    """The regular file of a blob: safetensors would wait for a pipe."""
    if root is None:
        raise BlobError(path, "the data set is in memory only and has no blobs")
    relative = path.removeprefix("./")
    if problem := relative_path_problem(relative):
        raise BlobError(path, f"{problem}; blobs stay below the data set's root")
    file = root / relative
    if not is_below(os.path.realpath(file), os.path.realpath(root)):
        raise BlobError(path, "leads out of the data set through a link")
    with open_regular(file) as content:
        if content.read(len(LFS_POINTER)) == LFS_POINTER:
            raise BlobError(path, "is a Git LFS pointer; run 'git lfs pull' in the data set")
    return file


# -- headers -----------------------------------------------------------------------------------------

MAX_HEADER_BYTES = 100_000_000
"""The limit of the format itself."""

STORED_BITS: Mapping[str, int] = MappingProxyType({
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
        if start == LFS_POINTER[:8]:
            raise BadHeader("it is a Git LFS pointer; run 'git lfs pull' in the data set")
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise BadHeader(f"its header would take {length} bytes of {size}; it is cut off or another format")
        text = file.read(length)
    try:
        entries = {name: entry for name, entry in _decode_header(text).items() if name != "__metadata__"}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadHeader(f"its header is not valid ({error})") from error
    data_bytes = size - 8 - length
    tensors = {name: _tensor(name, entry, data_bytes) for name, entry in entries.items()}
    _check_order({name: entry.data_offsets for name, entry in entries.items()}, data_bytes)
    return tensors


class _Entry(msgspec.Struct):
    dtype: str = ""
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()
    data_offsets: tuple[int, int] = (-1, -1)


_decode_header = msgspec.json.Decoder(dict[str, _Entry]).decode


def _check_order(offsets: Mapping[str, tuple[int, int]], data_bytes: int) -> None:
    """Check that the tensors fill the data without overlaps and gaps, which the format requires."""
    done = 0
    for name, (start, end) in sorted(offsets.items(), key=lambda item: item[1]):
        if start != done:
            relation = "overlaps the one before it" if start < done else "leaves a gap after the one before it"
            raise BadHeader(f"tensor {name!r} begins at byte {start} of the data and not at {done}: it {relation}")
        done = end
    if done != data_bytes:
        raise BadHeader(f"its tensors take {done} bytes, and {data_bytes} follow the header")


def _tensor(name: str, entry: _Entry, data_bytes: int) -> StoredTensor:
    dtype, shape, (start, end) = entry.dtype, entry.shape, entry.data_offsets
    if not 0 <= start <= end <= data_bytes:
        raise BadHeader(f"tensor {name!r} would take the bytes {start} to {end} of {data_bytes}; the file is cut off")
    wanted = -(-math.prod(shape) * STORED_BITS.get(dtype, 0) // 8)
    if dtype in STORED_BITS and wanted != end - start:
        raise BadHeader(f"tensor {name!r} has {end - start} bytes, and {dtype} of shape {list(shape)} takes {wanted}")
    return StoredTensor(dtype, shape)
