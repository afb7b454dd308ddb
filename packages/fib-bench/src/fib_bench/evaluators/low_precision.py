"""Evaluator of quantised outputs. Real values are compared in rounding steps of their format.

Two right kernels that compute a number in different orders round it to neighbours now and then, so
one step is right everywhere. That alone would let a kernel be a step off in all elements (one that
cuts digits off, or scales by a few percent): so the elements must not lean to one side either.
Numbers with a scale of their own, per tensor, row or block, are compared as the products.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch

from ..checking.comparison import (
    Comparison,
    ErrorLimits,
    Extent,
    OutputCheck,
    Piece,
    comparison_of,
    dtype_name,
    element_count,
    errors,
    limit_of,
    logical_shape,
    measure_extent,
    pieces,
    statistics_of,
)
from ..config.model import ONE_STEP, ResolvedEvalConfig
from .protocol import SCALE, BuiltIn, Case, Check, EachOutput, Tensors, default_parts

_EXPONENT_BIAS = 127
"""Scales in one byte without sign (e8m0) are powers of two."""


@attrs.frozen
class Format:
    """A number format."""

    name: str
    mantissa_bits: int
    """0 for integers, whose steps are all 1."""
    least_exponent: int = 0
    """Exponent of the smallest normal number; below it, steps do not get any smaller."""

    def step(self, values: torch.Tensor) -> torch.Tensor:
        """The distance to the next number away from zero, of values in this format."""
        if not self.mantissa_bits:
            return torch.ones_like(values)
        _, exponents = torch.frexp(values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
        smallest = torch.full_like(exponents, self.least_exponent)
        exponents = torch.where(values == 0, smallest, torch.maximum(exponents - 1, smallest))
        return torch.ldexp(torch.ones_like(values), exponents - self.mantissa_bits)


_FORMATS = {
    "float8_e4m3fn": Format("float8_e4m3fn", 3, -6),
    "float8_e5m2": Format("float8_e5m2", 2, -14),
    "float4_e2m1": Format("float4_e2m1", 1, 0),
    "int8": Format("int8", 0),
}
_PACKED = re.compile(r"fp4|float4|e2m1|packed", re.IGNORECASE)
"""Outputs of bytes that hold fp4 are compared exactly: rounding steps are known where they are float4_e2m1."""


def _factors(scale: torch.Tensor, numbers: torch.Tensor, width: int) -> torch.Tensor:
    """The factor of every number, ``[rows, width]``; bytes are exponents. The shapes fit."""
    shape = logical_shape(numbers)
    if not scale.dtype.is_floating_point:
        exponents = (scale.view(torch.uint8) if scale.dtype == torch.int8 else scale).int() - _EXPONENT_BIAS
        scale = torch.ldexp(torch.ones(scale.shape, device=scale.device), exponents)
    factors = _oriented(scale.float(), shape)
    assert factors is not None
    for axis, size in enumerate(shape):
        factors = factors.repeat_interleave(size // max(factors.shape[axis], 1), dim=axis)
    return factors.reshape(-1, width)


def _oriented(scale: torch.Tensor, shape: Sequence[int]) -> torch.Tensor | None:
    """The scales with an axis for every one of a shape; None if they do not fit.

    There is one for all, one per row, or one per block along every axis, the last two of which may be exchanged.
    """
    if scale.numel() == 1:
        return scale.reshape([1] * len(shape))
    if scale.shape == tuple(shape[:-1]):
        return scale.unsqueeze(-1)
    for turned in (scale, scale.mT if scale.dim() >= 2 else scale):
        if turned.dim() == len(shape) and all(
            count and size % count == 0 for count, size in zip(turned.shape, shape, strict=True)
        ):
            return turned
    return None


MATCHED_RATIO = 0.99
ERROR_CAP = 0.25
"""However many match, none may be off by more than this times the largest magnitude expected."""
_MAX_LEAN = 0.1
"""Largest mean error towards zero or away from it, in steps; truncation has an error of a half."""
_SIGMAS = 6.0
_SLACK = 1 + 2.0**-10
"""Scales are rounded as well: a step is a step even if that makes it a little larger."""

Pair = tuple[torch.Tensor, torch.Tensor]
"""Found and expected."""


class LowPrecision(BuiltIn):
    """One step of the format, a matched ratio, an error cap, and no lean."""

    name = "low_precision"

    def settings(self, config: ResolvedEvalConfig) -> ResolvedEvalConfig:
        """A matched ratio of 0.99, and an error cap of a quarter at most."""
        ratio = MATCHED_RATIO if config.required_matched_ratio is None else config.required_matched_ratio
        return attrs.evolve(config, required_matched_ratio=ratio, error_cap=min(config.error_cap, ERROR_CAP))

    def check(self, case: Case) -> Check:
        """Quantised outputs in steps, with their scales; all others by the default rule."""
        formats = {name: found for name in case.expected if (found := _format(name, case)) is not None}
        plain = attrs.evolve(case, config=attrs.evolve(case.config, required_matched_ratio=None))
        parts: dict[str, OutputCheck] = default_parts(plain, case.expected.keys() - formats.keys())
        pairs = {name: scale for name in formats if (scale := _scale_of(name, case)) is not None}
        for name, fmt in formats.items():
            parts[name] = _steps_part(name, fmt, case, case.expected.get(pairs.get(name, "")))
        return InSteps({name: parts[name] for name in case.expected}, pairs)


def _format(name: str, case: Case) -> Format | None:
    """The format of a quantised output; nothing for a scale in int8, which is an exponent."""
    dtype, text = dtype_name(case.expected[name]), f"{name} {case.definition.outputs[name].description}"
    if dtype == "int8" and (SCALE.fullmatch(name) or _PACKED.search(text) or _scale_of(name, case) is None):
        return None
    return _FORMATS.get(dtype)


def _scale_of(name: str, case: Case) -> str | None:
    """The output that holds the scale of another, if its shape determines how it is applied."""
    if SCALE.fullmatch(name):
        return None
    scales = [other for other in case.expected if SCALE.fullmatch(other)]
    named = [other for other in scales if other.startswith(name)]
    shape = case.expected[name].shape
    for other in named or (scales if len(case.expected) == len(scales) + 1 else []):
        if _oriented(case.expected[other], shape) is not None:
            return other
    return None


@attrs.frozen
class StepsComparison(Comparison):
    """The comparison of a quantised output, and its bias."""

    lean: float = 0.0
    """Steps away from zero, on average; 0 for as many as rounding and chance explain."""

    def explain(self) -> str:
        """Say in one line how it compares."""
        if not self.lean:
            return super().explain()
        side = "away from" if self.lean > 0 else "towards"
        return f"{super().explain()}; on average they are {abs(self.lean):.2f} rounding steps {side} zero"


@attrs.frozen(eq=False, kw_only=True)
class StepsPart(OutputCheck):
    """The check of one quantised output."""

    format: Format
    steps: float
    """The number of steps that an element may be off by."""

    def compare(self, found: torch.Tensor, expected: torch.Tensor) -> Comparison:
        """Compare without scales."""
        return self.compare_scaled(found, expected, None)

    def compare_scaled(self, found: torch.Tensor, expected: torch.Tensor, scales: Pair | None) -> StepsComparison:
        """Compare real values, with the scales that were found and expected; waits for the device twice."""
        width = self.rule.width
        factors = (
            None if scales is None else (_factors(scales[0], expected, width), _factors(scales[1], expected, width))
        )
        rows: list[torch.Tensor] = []
        leans = []
        for piece in pieces(found, expected, width, may_skip=scales is None):
            steps = self.format.step(piece.found), self.format.step(piece.expected)
            if factors is not None:
                piece, steps = _scaled(piece, steps, factors)
            within = torch.maximum(*steps) * (self.steps * _SLACK)
            wrong = ~(piece.absolute <= within) & ~piece.expected.isnan()
            rows.append(statistics_of(piece, self.rule, wrong, wrong))
            off = ((piece.found - piece.expected) * piece.expected.sign() / steps[1]).nan_to_num(nan=0.0).clamp(-2, 2)
            leans.append(torch.stack([off.sum(), off.square().sum()]))
        like = torch.empty_like(expected, dtype=None if expected.is_floating_point() else torch.float64, device="meta")
        allowed = f"{self.steps:g} rounding steps"
        comparison = comparison_of(self.name, rows, like, self.extent, self.rule, allowed)
        total, squares = torch.stack(leans).sum(dim=0).tolist() if leans else (0.0, 0.0)
        is_leaning = abs(total) > _MAX_LEAN * self.extent.count + _SIGMAS * squares**0.5
        lean = total / self.extent.count if is_leaning else 0.0
        return StepsComparison(**attrs.asdict(comparison, recurse=False), lean=lean)

    def is_right(self, comparison: Comparison) -> bool:
        """Whether enough elements are near, and they do not lean to one side."""
        assert isinstance(comparison, StepsComparison)
        return comparison.is_within(self.required_matched_ratio) and not comparison.lean

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace."""
        extra = super().to_extra()
        return {"format": self.format.name, "steps": self.steps} | {name: extra[name] for name in _KEPT}


_KEPT = ("required_matched_ratio", "insensitive_to", "undefined_share", "infinite_share")


def _scaled(piece: Piece, steps: Pair, factors: Pair) -> tuple[Piece, Pair]:
    a, b = (factor[piece.rows].double() for factor in factors)
    found, expected = piece.found * a, piece.expected * b
    absolute, relative = errors(found, expected)
    return Piece(piece.rows, found, expected, absolute, relative, piece.start), (steps[0] * a.abs(), steps[1] * b.abs())


def _steps_part(name: str, fmt: Format, case: Case, scale: torch.Tensor | None) -> StepsPart:
    expected = case.expected[name]
    width = element_count(expected) // max(math.prod(expected.shape[:-1]), 1)
    dtype = dtype_name(expected)
    steps = max(1.0, case.config.tolerance(dtype).rtol / ONE_STEP[dtype].rtol) if dtype in ONE_STEP else 1.0
    extent = _extent(expected, width, None if scale is None else _factors(scale, expected, width))
    part = StepsPart(
        name=name,
        format=fmt,
        steps=steps,
        rule=ErrorLimits(width, 0.0, 0.0, limit_of(case.config.error_cap, extent)),
        extent=extent,
        required_matched_ratio=case.config.required_matched_ratio,
    )
    if not extent.count:
        return part
    zeros = torch.zeros_like(expected.view(torch.uint8)).view(expected.dtype)
    passes = part.is_right(part.compare_scaled(zeros, expected, None if scale is None else (scale, scale)))
    return attrs.evolve(part, insensitive_to=("zeros",) * passes, rejects=("zeros",) * (not passes))


def _extent(expected: torch.Tensor, width: int, factors: torch.Tensor | None) -> Extent:
    if factors is None:
        return measure_extent(expected)
    largest = [
        (piece.expected * factors[piece.rows]).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs().max()
        for piece in pieces(expected, expected, width, may_skip=False)
    ]
    return attrs.evolve(measure_extent(expected), largest=float(torch.stack(largest).max()) if largest else 0.0)


@attrs.frozen(eq=False)
class InSteps(EachOutput):
    """Quantised outputs beside their scales."""

    scales: Mapping[str, str]
    """Output that holds the scale, by scaled output."""

    def compare_output(self, name: str, found: Tensors, expected: Tensors) -> Comparison:
        """Compare one output, a quantised one multiplied by the scales that came with it."""
        part = self.parts[name]
        if name in self.scales and isinstance(part, StepsPart):
            scales = found[self.scales[name]], expected[self.scales[name]]
            return part.compare_scaled(found[name], expected[name], scales)
        return super().compare_output(name, found, expected)
