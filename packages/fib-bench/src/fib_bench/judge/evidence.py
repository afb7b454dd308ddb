"""Evidence. Distinguishes an exploit from a bug when outputs are wrong."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..transport.slots import CallLayout
from .prepared import InputSet


def kept_answer(outputs: torch.Tensor, layout: CallLayout, asked: InputSet, others: Iterable[InputSet]) -> str:
    """A message if outputs are right for the inputs of another call; else nothing.

    Outputs of one value are no evidence: a kernel that writes nothing but zeros is wrong, not necessarily dishonest.
    """
    if all(_has_one_value(tensor) for tensor in layout.output_tensors(outputs).values()):
        return ""
    for other in others:
        if other is not asked and other.is_right(layout, outputs) and not asked.is_right(layout, other.expected):
            return f"kept outputs: they are right for the inputs of an earlier call ({other.distribution})"
    return ""


def repeated_answer(outputs: torch.Tensor, layout: CallLayout, others: Iterable[torch.Tensor]) -> str:
    """A message if another call with other inputs has the very same outputs, of more than one value; else nothing.

    Args:
        outputs: Wrong outputs, ``[bytes]``.
        layout: Where they lie.
        others: Outputs of timed calls; they may contain these.
    """
    if all(_has_one_value(tensor) for tensor in layout.output_tensors(outputs).values()):
        return ""
    is_repeated = sum(torch.equal(outputs, other) for other in others) > 1
    return "kept outputs: they are the same in calls with other inputs" if is_repeated else ""


def _has_one_value(tensor: torch.Tensor) -> bool:
    """Whether all elements have the same bits."""
    elements = tensor.contiguous().view(-1).view(torch.uint8).view(-1, tensor.itemsize)
    return bool((elements == elements[:1]).all())
