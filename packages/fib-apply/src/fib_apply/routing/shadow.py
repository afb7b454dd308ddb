"""Shadow comparison: outputs of a solution against those of the fallback, within the benchmark's tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fib_schema import Definition

from ..selection.rules import Candidate

_TOLERANCE = 1e-2
"""Absolute and relative tolerance where the trace records none; the default of benchmarks."""


class OutputMismatch(Exception):
    """Outputs differ by more than the tolerance."""


def compare_outputs(definition: Definition, found: Any, expected: Any, recorded: Candidate | None) -> None:
    """Compare all outputs; synchronizes with the device.

    An element is wrong if both its absolute and its relative error exceed their bounds.

    Args:
        definition: Names the outputs.
        found: The outputs of the solution: a tensor, or one for each output.
        expected: The outputs of the fallback.
        recorded: Holds the tolerance of the solution's trace.

    Raises:
        OutputMismatch: They differ.
    """
    ours, theirs = _as_tuple(found), _as_tuple(expected)
    if len(ours) != len(theirs):
        raise OutputMismatch(f"{len(ours)} outputs instead of {len(theirs)}")
    for name, a, b in zip(definition.outputs, ours, theirs, strict=False):
        _compare(name, a, b, recorded)


def _as_tuple(value: Any) -> Sequence[Any]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _compare(name: str, found: Any, expected: Any, recorded: Candidate | None) -> None:
    if not isinstance(expected, torch.Tensor) or not isinstance(found, torch.Tensor):
        if found != expected:
            raise OutputMismatch(f"{name}: {found!r:.100} instead of {expected!r:.100}")
        return
    if found.shape != expected.shape or found.dtype != expected.dtype:
        theirs = f"{expected.dtype} {list(expected.shape)}"
        raise OutputMismatch(f"{name}: {found.dtype} {list(found.shape)} instead of {theirs}")
    a, b = found.detach().double(), expected.detach().double()
    atol = _given(recorded.atol if recorded else None, _TOLERANCE)
    rtol = _given(recorded.rtol if recorded else None, _TOLERANCE)
    same = (a == b) | (a.isnan() & b.isnan())
    error = (a - b).abs()
    wrong = ~same & ~((error <= atol) | (error <= rtol * b.abs()))
    count = int(wrong.sum())
    allowed = 1.0 - _given(recorded.required_matched_ratio if recorded else None, 1.0)
    if count > allowed * wrong.numel():
        raise OutputMismatch(f"{name}: {count} of {wrong.numel()} elements differ by more than {atol:g} and {rtol:.1%}")


def _given(value: float | None, default: float) -> float:
    return default if value is None else value
