"""Tensors of workloads in safetensors files; needs the extra ``blobs``, and loading and saving imports torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ._record import relative_path_problem
from .data_files import LFS_POINTER, is_below
from .errors import FibError
from .files import open_regular

if TYPE_CHECKING:
    import torch


@attrs.frozen
class BlobError(FibError, ValueError):
    """A blob that is missing, unreadable or outside of the data set."""

    path: str
    problem: str
    code: str = "bad-blob"
    """The kind of problem, for reports."""

    def __str__(self) -> str:
        return f"blob {self.path!r} {self.problem}"


def load_tensor(root: Path | None, path: str, tensor_key: str) -> torch.Tensor:
    """Read one tensor of a blob, whose path is relative to the root of the data set, to the CPU.

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
        raise BlobError(path, "does not exist", "missing-blob") from error
    except OSError as error:
        raise BlobError(path, f"cannot be read: {error.strerror or error}", "unreadable") from error
    except BlobError:
        raise
    except Exception as error:
        raise BlobError(path, f"is not a valid safetensors file: {error}") from error


@attrs.frozen
class StoredTensor:
    """Dtype, as safetensors names it, and shape of a tensor in a file."""

    dtype: str
    shape: tuple[int, ...]


def stored_tensors(root: Path, path: str) -> dict[str, StoredTensor]:
    """The tensors of a blob, of which only the header is read.

    Raises:
        BlobError: There is no such file, it is no complete safetensors file, or its path leaves the set.
    """
    try:
        from safetensors import safe_open
    except ImportError as error:
        problem = "cannot be checked without safetensors; run 'pip install fib-schema[blobs]'"
        raise BlobError(path, problem, "unreadable") from error

    with _explained(path), safe_open(_file(root, path), framework="np") as content:
        slices = {name: content.get_slice(name) for name in content.keys()}  # noqa: SIM118 it is not a mapping
        return {name: StoredTensor(one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}


def format_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The content of a safetensors file of contiguous copies of tensors."""
    from safetensors.torch import save

    data: bytes = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    return data


def _file(root: Path | None, path: str) -> Path:
    """The regular file of a blob: safetensors would wait for a pipe."""
    if root is None:
        raise BlobError(path, "cannot be read: the data set is in memory only and has no blobs")
    relative = path.removeprefix("./")
    if problem := relative_path_problem(relative):
        raise BlobError(path, f"{problem}; blobs stay below the data set's root")
    file = root / relative
    if not is_below(os.path.realpath(file), os.path.realpath(root)):
        raise BlobError(path, "leads out of the data set through a link; copy the file instead", "blob-outside")
    with open_regular(file) as content:
        if content.read(len(LFS_POINTER)) == LFS_POINTER:
            raise BlobError(path, "is a Git LFS pointer; run 'git lfs pull' in the data set")
    return file
