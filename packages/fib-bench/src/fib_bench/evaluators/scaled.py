"""Row-scaled checks. The absolute tolerance of an element follows the magnitude of its row or state.

One tolerance for all elements does not suit an output of large and small rows: it accepts
anything in the small ones, and no rounding in the large ones. An element may be off by a share of
the largest magnitude of its row, or by `rtol` of itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import torch

from ..checking.comparison import Comparison, Extent, comparison_of, limit_of, measure_extent
from ..checking.elements import WHOLE_ROW, dtype_name, element_count, is_float4
from ..config.model import DISTRIBUTIONS, ResolvedEvalConfig
from ..inputs.generation import Value
from .tally import Piece, pieces, statistics_of

_SMALLEST_NORMAL = 2.0**-126
"""Kernels may flush smaller numbers to zero."""
_UNTOUCHED = ResolvedEvalConfig()


@attrs.frozen(eq=False, kw_only=True)
class ScaledPart:
    """The check of one output, row by row."""

    name: str
    width: int
    """The elements in a row."""
    atol: torch.Tensor
    """``[rows]``, float64"""
    rtol: float
    extent: Extent
    limit: float = math.inf
    """The error that no element may have, however many match."""
    row_share: float = WHOLE_ROW
    """The largest share of a row's elements that may be wrong, however many match in other rows."""
    required_matched_ratio: float | None = None
    insensitive_to: tuple[str, ...] = ()
    """Wrong answers that pass: ``zeros``, ``input NAME``."""
    rejects: tuple[str, ...] = ()
    """Wrong answers that do not."""

    @property
    def undefined_share(self) -> float:
        """The share of expected elements that are NaN; anything passes there."""
        return self.extent.undefined_share

    @property
    def infinite_share(self) -> float:
        """The share of expected elements that are infinite; only the same passes there."""
        return self.extent.infinite_share

    def wrong(self, piece: Piece) -> torch.Tensor:
        """Mask of the wrong elements of some rows."""
        return (piece.absolute > self.atol[piece.rows, None]) & (piece.relative > self.rtol)

    def compare(self, found: torch.Tensor, expected: torch.Tensor) -> Comparison:
        """Compare every element; waits for the device once."""
        rows: list[torch.Tensor] = []
        for piece in pieces(found, expected, self.width):
            rows += statistics_of(piece, self.wrong(piece), self.limit, self.row_share)
        allowed = f"relative error {self.rtol:g} or the absolute error of its row"
        return comparison_of(self.name, rows, expected, self.extent, self.limit, allowed)

    def is_right(self, comparison: Comparison) -> bool:
        """Whether enough elements are right, and no row is wrong."""
        return comparison.is_within(self.required_matched_ratio)

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace: the tolerances of the rows with the smallest and the largest scale."""
        return {
            "atol": torch.stack(self.atol.aminmax()).tolist() if self.atol.numel() else [],
            "rtol": self.rtol,
            "required_matched_ratio": self.required_matched_ratio,
            "row_share": self.row_share,
            "insensitive_to": list(self.insensitive_to),
            "undefined_share": self.undefined_share,
            "infinite_share": self.infinite_share,
        }


def scaled_part(
    name: str,
    expected: torch.Tensor,
    config: ResolvedEvalConfig,
    *,
    axes: int = 1,
    share: float | None = None,
) -> ScaledPart:
    """Make the check of an output.

    Args:
        name: The output's name.
        expected: What the reference gave; floating, and not packed.
        config: The settings: `rtol`, `required_matched_ratio` and `error_cap` as always; an `atol` only if it
            is larger than the default, which is meant for numbers around 1.
        axes: The last axes that make up a row.
        share: What an element may be off by, of the largest in its row; None means `rtol`.
    """
    tolerance, extent = config.tolerance(dtype_name(expected)), measure_extent(expected)
    width = math.prod(expected.shape[-axes:])
    least = tolerance.atol if tolerance.atol > _UNTOUCHED.atol else _SMALLEST_NORMAL
    share = tolerance.rtol if share is None else share
    return ScaledPart(
        name=name,
        width=width,
        atol=(row_scales(expected, width) * share).clamp_(min=least),
        rtol=tolerance.rtol,
        extent=extent,
        limit=limit_of(config.error_cap, extent),
        required_matched_ratio=config.required_matched_ratio,
    )


def typical_inputs(config: ResolvedEvalConfig) -> ResolvedEvalConfig:
    """The settings without distributions in which everything is tiny, huge or equal, unless they ask for them."""
    return attrs.evolve(config, distributions=("normal",)) if config.distributions == DISTRIBUTIONS else config


def row_scales(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """The largest finite magnitude of each row, in float64."""
    if not tensor.numel():
        return torch.zeros(0, dtype=torch.float64, device=tensor.device)
    rows = tensor.reshape(-1, width)
    low, high = rows.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).aminmax(dim=1)
    return torch.maximum(low.double().abs(), high.double().abs())


def with_blind_spots(part: ScaledPart, expected: torch.Tensor, inputs: Mapping[str, Value]) -> ScaledPart:
    """Return the check with the result of trying zeros and each input as the output."""
    answers = {"zeros": torch.zeros_like(expected)} if expected.numel() else {}
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and _could_be_returned(value, expected):
            answers[f"input {name}"] = value.reshape(expected.shape).to(expected.dtype)
    verdicts = {}
    for name, answer in answers.items():
        answer = torch.where(expected.isfinite(), answer, expected)
        verdicts[name] = part.is_right(part.compare(answer, expected))
    return attrs.evolve(
        part,
        insensitive_to=tuple(name for name, passes in verdicts.items() if passes),
        rejects=tuple(name for name, passes in verdicts.items() if not passes),
    )


def _could_be_returned(value: torch.Tensor, expected: torch.Tensor) -> bool:
    is_plain = value.dtype.is_floating_point and not is_float4(value)
    return is_plain and element_count(value) == element_count(expected) > 0
