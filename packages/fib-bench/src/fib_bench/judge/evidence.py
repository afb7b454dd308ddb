"""Evidence. Distinguishes an exploit from a bug when outputs are wrong."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..transport.slots import CallLayout
from .prepared import InputSet


def kept_answer(outputs: torch.Tensor, layout: CallLayout, asked: InputSet, others: Iterable[InputSet]) -> str:
    """A message if outputs are right for the inputs of another call; else nothing."""
    for other in others:
        if other is not asked and other.is_right(layout, outputs) and not asked.is_right(layout, other.expected):
            return f"kept outputs: they are right for the inputs of an earlier call ({other.distribution})"
    return ""


def stale_answer(outputs: torch.Tensor, before: torch.Tensor) -> str:
    """A message if a slot holds the outputs of an earlier pass; else nothing."""
    if torch.equal(outputs, before):
        return "kept outputs: they are those of an earlier call at the same addresses"
    return ""
