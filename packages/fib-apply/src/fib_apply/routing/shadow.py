"""Compares what a solution gave with what the fallback gave, by the tolerance that the benchmark used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fib_schema import Definition

from ..choosing.rules import Candidate

_TOLERANCE = 1e-2
"""Absolute and relative, where traces tell none: what benchmarks take by default."""


class Differs(Exception):
    """Outputs are not the same within the tolerance."""


def compare_outputs(definition: Definition, found: Any, expected: Any, recorded: Candidate | None) -> None:
    """Compare all outputs; waits for the device.

    An element is wrong if both its absolute and its relative error exceed their bounds.

    Args:
        definition: Names the outputs.
        found: What the solution gave: a tensor, or one for each output.
        expected: What the fallback gave.
        recorded: The tolerance in the solution's trace.

    Raises:
        Differs: They are not the same.
    """
    ours, theirs = _as_tuple(found), _as_tuple(expected)
    if len(ours) != len(theirs):
        raise Differs(f"{len(ours)} outputs instead of {len(theirs)}")
    for name, a, b in zip(definition.outputs, ours, theirs, strict=False):
        _compare(name, a, b, recorded)


def _as_tuple(value: Any) -> Sequence[Any]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _compare(name: str, found: Any, expected: Any, recorded: Candidate | None) -> None:
    if not isinstance(expected, torch.Tensor) or not isinstance(found, torch.Tensor):
        if found != expected:
            raise Differs(f"{name}: {found!r:.100} instead of {expected!r:.100}")
        return
    if found.shape != expected.shape or found.dtype != expected.dtype:
        theirs = f"{expected.dtype} {list(expected.shape)}"
        raise Differs(f"{name}: {found.dtype} {list(found.shape)} instead of {theirs}")
    a, b = found.detach().double(), expected.detach().double()
    atol = _given(recorded.atol if recorded else None, _TOLERANCE)
    rtol = _given(recorded.rtol if recorded else None, _TOLERANCE)
    same = (a == b) | (a.isnan() & b.isnan())
    error = (a - b).abs()
    wrong = ~same & ~((error <= atol) | (error <= rtol * b.abs()))
    count = int(wrong.sum())
    allowed = 1.0 - _given(recorded.required_matched_ratio if recorded else None, 1.0)
    if count > allowed * wrong.numel():
        raise Differs(f"{name}: {count} of {wrong.numel()} elements are off by more than {atol:g} and {rtol:.1%}")


def _given(value: float | None, default: float) -> float:
    return default if value is None else value
