"""Tensors of workloads in safetensors files. Needs the extra ``blobs``; imports torch when called."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ._record import relative_path_problem
from ._workload_checks import read_header
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


def check_blob(root: Path | None, path: str) -> None:
    """Check that a blob is a readable safetensors file, as complete as its header says; reads the header only.

    Raises:
        BlobError: It is not.
    """
    with _explained(path):
        read_header(os.fspath(_file(root, path)))


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
