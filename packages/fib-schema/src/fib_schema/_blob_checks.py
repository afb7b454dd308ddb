"""Validation of the blobs that workloads name: existence, place below the root, dtypes and shapes."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ._safetensors import STORED_DTYPES, BadHeader, StoredTensor, read_header
from .data_files import is_below
from .definition import TensorSpec
from .problems import Findings
from .reader import LFS_POINTER
from .regular_files import open_regular
from .workload import SafetensorsInput


class BlobChecks:
    """Checks blobs, each file once; of a bad file only the first mention is reported."""

    def __init__(self, root: str, findings: Findings) -> None:
        self._root = root
        self._real_root = os.path.realpath(root)
        self._findings = findings
        self._headers: dict[str, dict[str, StoredTensor] | None] = {}

    def check(
        self, source: SafetensorsInput, spec: TensorSpec, shape: tuple[int, ...] | None, place: str, path: str
    ) -> None:
        """Report the problems of the tensor that an input names.

        Args:
            source: The file and the tensor.
            spec: The input in the definition.
            shape: The input's shape by the workload's axes; None if it is unknown.
            place: Where the workload is.
            path: The JSON path of the input.
        """
        file = source.path.removeprefix("./")
        if file not in self._headers:
            self._headers[file] = self._read(file, place, f"{path}.path")
        header = self._headers[file]
        if header is None:
            return
        stored = header.get(source.tensor_key)
        if stored is None:
            message = f"{file} has no tensor {source.tensor_key!r} (it has {_listed(header)})"
            self._findings.error(place, message, "missing-tensor", f"{path}.tensor_key")
            return
        for message in _contradictions(stored, spec, shape):
            self._findings.error(place, f"{file}: {message}", "blob-contradicts", path)

    def _read(self, file: str, place: str, path: str) -> dict[str, StoredTensor] | None:
        """The header of a file; None if it is bad, which is reported."""
        absolute = os.path.join(self._root, file)
        if not is_below(os.path.realpath(absolute), self._real_root):
            message = f"{file} leads out of the data set through a link; copy the file instead"
            self._findings.error(place, message, "blob-outside", path)
            return None
        try:
            if problem := _pointer_problem(absolute):
                self._findings.error(place, f"{file} {problem}", "git-lfs", path)
                return None
            header = read_header(absolute)
        except FileNotFoundError:
            message = f"the blob {file} does not exist; get it, or remove the workloads that name it"
            self._findings.error(place, message, "missing-blob", path)
        except OSError as error:
            message = f"the blob {file} cannot be read: {error.strerror or error}"
            self._findings.error(place, message, "unreadable", path)
        except BadHeader as error:
            message = f"{file} is not a complete safetensors file: {error}"
            self._findings.error(place, message, "bad-blob", path)
        else:
            self._findings.counts["blobs"] += 1
            return header
        return None


def _pointer_problem(path: str) -> str | None:
    with open_regular(path) as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            return "is a Git LFS pointer and not the tensors; run 'git lfs pull' in the data set"
    return None


def _contradictions(stored: StoredTensor, spec: TensorSpec, shape: tuple[int, ...] | None) -> list[str]:
    wanted = STORED_DTYPES[spec.dtype]
    messages = []
    if stored.dtype not in wanted:
        messages.append(f"the tensor is {stored.dtype}, the definition says {spec.dtype} ({_listed(wanted)})")
    if spec.shape is None:
        if stored.shape:
            messages.append(f"the tensor has shape {list(stored.shape)}, the definition says it is a scalar")
    elif len(stored.shape) != len(spec.shape):
        axes = ", ".join(spec.shape)
        messages.append(f"the tensor has shape {list(stored.shape)}, the definition has the axes [{axes}]")
    elif shape is not None and stored.shape != shape and len(wanted) == 1:
        sizes = ", ".join(f"{axis}={size}" for axis, size in zip(spec.shape, shape, strict=True))
        messages.append(f"the tensor has shape {list(stored.shape)}, the axes say {list(shape)} ({sizes})")
    return messages


def _listed(names: Iterable[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:8]) + (", ..." if len(shown) > 8 else "")
