"""Watched runs: what a solution writes to its inputs, and the memory and form of the results that it returns.

Used for the first run of each key and for calls that are compared. Copies take memory and synchronize with the device.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..errors import is_out_of_memory

_Reference: Any = StorageWeakRef  # torch does not type it
WRITES_INPUTS = "it writes to its inputs"
_KEEPS_RESULTS = "it returns memory that it keeps, or that of an input"
_ODD_RESULTS = "it returns a tensor of a subclass, not contiguous, with a gradient or of inference mode"
_MAX_COPIED_BYTES = 64 << 20
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by the size of elements: comparing bits, a NaN is equal to itself."""


def copies_of(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...] | None:
    """Copies without gradients; None if there is no memory for them."""
    try:
        return tuple(tensor.detach().as_subclass(torch.Tensor).clone() for tensor in tensors)
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            return None
        raise


class WatchedInputs:
    """The inputs of a call, to which a solution must not write.

    Of large inputs there are no copies: only writes by torch are found, which change a tensor's version.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        self._versions = self._read_versions()
        small = [tensor for tensor in self._tensors if _is_copied(tensor)]
        copies = copies_of(small)
        self._pairs = [] if copies is None else list(zip(small, copies, strict=True))
        self.are_restored = len(self._pairs) == len(self._tensors)
        """Whether all writes are undone by `restore`."""

    def restore(self) -> bool:
        """Undo writes; returns whether there were any."""
        is_written = self._read_versions() != self._versions
        for tensor, copy in self._pairs:
            if not torch.equal(_bits(tensor), _bits(copy)):
                is_written = True
                with torch.inference_mode():  # where both kinds of tensors may be written
                    tensor.copy_(copy)
        return is_written

    def _read_versions(self) -> list[int]:
        return [tensor._version for tensor in self._tensors if not tensor.is_inference()]  # noqa: SLF001 no public name


def _is_copied(tensor: torch.Tensor) -> bool:
    """Whether a tensor is small; one without memory cannot be read."""
    return tensor.nbytes <= _MAX_COPIED_BYTES and tensor.element_size() in _BITS and tensor.data_ptr() != 0


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(_BITS[tensor.element_size()])


def own_results(results: list[Any], *, may_be_strided: bool) -> str | None:
    """Replace results by copies that nobody else holds; returns what was wrong with them, or None.

    The caller must hold no other references: memory that outlives the results is kept by somebody else. Results stay
    as they are if there is no memory for copies. They may be strided like the inputs, as those of torch's operators.
    """
    places = [place for place, value in enumerate(results) if isinstance(value, torch.Tensor)]
    are_plain = all(_is_plain(results[place], may_be_strided=may_be_strided) for place in places)
    problem = None if are_plain else _ODD_RESULTS
    copies = copies_of([results[place] for place in places])
    if copies is None:
        return problem
    storages = [_Reference(results[place].untyped_storage()) for place in places]
    for place, copy in zip(places, copies, strict=True):
        results[place] = copy if may_be_strided else copy.contiguous()
    if not all(storage.expired() for storage in storages):
        gc.collect()  # of cycles that the solution has left behind
        problem = problem or (None if all(storage.expired() for storage in storages) else _KEEPS_RESULTS)
    return problem


def _is_plain(value: torch.Tensor, *, may_be_strided: bool) -> bool:
    """Whether a result has the form that a function returns."""
    is_foreign = value.is_inference() and not torch.is_inference_mode_enabled()
    is_laid_out = may_be_strided or value.is_contiguous()
    return type(value) is torch.Tensor and is_laid_out and not (value.requires_grad or is_foreign)
