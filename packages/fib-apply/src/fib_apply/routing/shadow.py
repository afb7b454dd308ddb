"""Shadow comparison: outputs of a solution against those of the fallback, within the benchmark's tolerance."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from fib_schema import Definition
from fib_schema.display import counted

from ..selection.rankings import Candidate

_MAX_PART = 1 << 18
_TOLERANCE = 1e-2
"""Absolute and relative tolerance where the trace records none; the default of benchmarks."""


draw = random.Random().random
"""Decides which calls are compared; the engine's generator stays as it is."""


class OutputMismatch(Exception):
    """Outputs differ by more than the tolerance."""


def compare_outputs(definition: Definition, found: Any, expected: Any, recorded: Candidate | None) -> None:
    """Compare all outputs; synchronizes with the device.

    An element is wrong if both its absolute and its relative error exceed their bounds.

    Raises:
        OutputMismatch: They differ.
    """
    ours, theirs = _as_tuple(found), _as_tuple(expected)
    if len(ours) != len(theirs):
        raise OutputMismatch(f"{counted(len(ours), 'output')} instead of {len(theirs)}")
    for name, a, b in zip(definition.outputs, ours, theirs, strict=False):
        _compare(name, a, b, recorded)


def _as_tuple(value: Any) -> Sequence[Any]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _compare(name: str, found: Any, expected: Any, recorded: Candidate | None) -> None:
    if isinstance(found, torch.Tensor) and not isinstance(expected, torch.Tensor):
        raise OutputMismatch(f"{name}: the fallback returned {type(expected).__name__}, not a tensor")
    if not isinstance(expected, torch.Tensor) or not isinstance(found, torch.Tensor):
        if found != expected:
            raise OutputMismatch(f"{name}: {found!r:.100} instead of {expected!r:.100}")
        return
    if found.shape != expected.shape or found.dtype != expected.dtype:
        theirs = f"{expected.dtype} {list(expected.shape)}"
        raise OutputMismatch(f"{name}: {found.dtype} {list(found.shape)} instead of {theirs}")
    atol = _given(recorded.atol if recorded else None, _TOLERANCE)
    rtol = _given(recorded.rtol if recorded else None, _TOLERANCE)
    parts = _in_parts(found.detach(), expected.detach())
    count = int(sum(_count_wrong(a, b, atol, rtol) for a, b in parts))  # the only synchronization
    allowed = 1.0 - _given(recorded.required_matched_ratio if recorded else None, 1.0)
    if count > allowed * found.numel():
        raise OutputMismatch(f"{name}: {count} of {found.numel()} elements differ by more than {atol:g} and {rtol:.1%}")


def _in_parts(a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Views of two tensors, of at most `_MAX_PART` elements: the comparison takes ten times their memory."""
    if a.numel() <= _MAX_PART:
        yield a, b
        return
    axis = max(range(a.dim()), key=a.size)
    half = a.size(axis) // 2
    for begin, length in ((0, half), (half, a.size(axis) - half)):
        yield from _in_parts(a.narrow(axis, begin, length), b.narrow(axis, begin, length))


def _count_wrong(found: torch.Tensor, expected: torch.Tensor, atol: float, rtol: float) -> torch.Tensor:
    a, b = found.double(), expected.double()
    is_same = (a == b) | (a.isnan() & b.isnan())
    error = (a - b).abs_()
    is_close = (error <= atol) | (error <= b.abs().mul_(rtol))
    return (is_same | is_close).logical_not_().sum()


def _given(value: float | None, default: float) -> float:
    return default if value is None else value
