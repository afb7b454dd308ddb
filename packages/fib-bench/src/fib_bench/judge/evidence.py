"""What tells a trick from a bug when outputs are wrong."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..transport.slots import CallLayout
from .prepared import InputSet


def kept_answer(outputs: torch.Tensor, layout: CallLayout, asked: InputSet, others: Iterable[InputSet]) -> str:
    """Says whether outputs are the answer to other inputs than those that were asked; nothing if they are not."""
    for other in others:
        if other is not asked and other.is_right(layout, outputs) and not asked.is_right(layout, other.expected):
            return f"the outputs are right for inputs of an earlier call ({other.distribution}): they were kept"
    return ""


def stale_answer(outputs: torch.Tensor, before: torch.Tensor) -> str:
    """Says whether a slot holds what it held after an earlier pass; nothing if it does not."""
    if torch.equal(outputs, before):
        return "the outputs are those of an earlier call at the same addresses: they were kept"
    return ""
