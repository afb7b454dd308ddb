"""Unwritten outputs. Finds output elements that still hold the byte with which they were filled before the call."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_TELLING_BYTES = 4
"""Fewer bytes can equal the fill byte by chance."""
_MIN_SHARE = 0.01
"""A smaller share of elements may hold the fill value by chance: as float16 it is an ordinary number."""


def explain_unwritten(outputs: Mapping[str, torch.Tensor], fill: int) -> list[str]:
    """Messages about outputs, or parts of them, that a call did not write.

    Args:
        outputs: Wrong outputs by name, contiguous.
        fill: The byte that their memory held before the call.
    """
    return [text for name, tensor in outputs.items() if (text := _explain(name, tensor, fill))]


def _explain(name: str, tensor: torch.Tensor, fill: int) -> str:
    if tensor.nbytes < _TELLING_BYTES:
        return ""
    elements = tensor.reshape(-1).view(torch.uint8).reshape(tensor.numel(), -1)
    is_unwritten = (elements == fill).all(dim=1)
    count, total = int(is_unwritten.sum()), tensor.numel()
    if count == total:
        return f"output {name!r} was never written: all {total} elements hold the fill value from before the call"
    if tensor.element_size() == 1 or count < _MIN_SHARE * total:
        return ""
    first = [int(index) for index in torch.unravel_index(is_unwritten.to(torch.uint8).argmax(), tensor.shape)]
    what = f"{count} of {total} elements were never written (the first at {first})"
    return f"output {name!r}: {what}: they hold the fill value from before the call"
