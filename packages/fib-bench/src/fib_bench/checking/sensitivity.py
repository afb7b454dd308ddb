"""Sensitivity of checks. Known wrong answers are tried before a solution is judged.

A tolerance that suits outputs around 1 accepts anything where all outputs are tiny. So each expected output is compared
with wrong answers: zeros, each input of its size, its own elements shuffled, and itself scaled by 1 + 5 rtol. If one
would pass, atol is lowered to the output's scale. Answers that pass even then are reported.

Where outputs are large, atol is raised instead: an element near zero is then a difference of large sums, and has their
rounding errors. Tensor cores cut off the bits that a float32 sum cannot hold; simulated for 28,672 products of normally
distributed halves, that leaves errors of 4.5e-5 of the outputs' standard deviation, 0.004 near zero where outputs are
around 169. The raised atol is 15 times that error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import torch

from ..config.model import ResolvedEvalConfig
from .comparison import (
    Comparison,
    ErrorLimits,
    Extent,
    Piece,
    compare_by,
    comparison_of,
    limit_of,
    measure_extent,
    statistics_of,
)
from .elements import flat, is_float4, is_on_cpu, row_pieces, row_width, to_double

ZEROS, SHUFFLED, SCALED, OTHER_INPUTS = "zeros", "shuffled", "scaled", "other inputs"

_SCALED_BY = 5.0
"""The relative error of the scaled answer, in units of rtol."""
_MARGIN = 0.8
"""Fraction of the atol at which the scaled answer would just fail."""
_NEAR_ZERO = 0.05
"""The share of the error that rtol allows an element of median size, which is allowed to all elements."""
_STEPS = 2
"""Rounding steps of the dtype, at the output's scale, that are always allowed."""
_SUMMATION = 1e-4
"""The share of the scale that sums in another order may differ by: float32 over 100,000 terms does by less."""
_MOST = 0.5
"""Zeros have an error of the whole scale, so an atol below that fails them."""
_SUBNORMALS = 4
"""Steps between the smallest numbers of the dtype that are always allowed."""
_SMALLEST_NORMAL = 2.0**-126
"""Kernels may flush smaller numbers to zero."""
_LEFTOVER = 4 * 2.0**-23
"""Residue of a float32 difference of equal numbers, relative to the inputs."""
_SAMPLE = 1 << 18


@attrs.frozen(kw_only=True)
class OutputCheck:
    """The check of one output of one input set, and the wrong answers that it accepts."""

    name: str
    rule: ErrorLimits
    extent: Extent
    required_matched_ratio: float | None
    error_cap: float = math.inf
    is_tightened: bool = False
    """Whether `atol` was lowered to the output's scale."""
    insensitive_to: tuple[str, ...] = ()
    """Wrong answers that pass: ``zeros``, ``input NAME``, ``shuffled``, ``scaled``."""
    rejects: tuple[str, ...] = ()
    """Wrong answers that fail. An answer that happens to be right, such as equal elements shuffled, is in neither."""

    def wrong(self, piece: Piece) -> torch.Tensor:
        """The elements of a piece that are wrong."""
        return self.rule.wrong(piece)

    def compare(self, found: torch.Tensor, expected: torch.Tensor) -> Comparison:
        """Compare an output of a solution with the examined output; synchronizes the device once."""
        return compare_by(self.rule, self.name, found, expected, self.extent, wrong=self.wrong)

    def compare_calls(self, found: torch.Tensor, expected: torch.Tensor) -> Comparison:
        """Compare the outputs of several calls on inputs of the same distribution, ``[calls, *shape]`` each.

        Elements are judged as by `alike`; rows and the limit are not, which matter only where some are wrong.
        """
        rule = attrs.evolve(self.rule, width=row_width(expected))
        return compare_by(rule, self.name, found, expected, measure_extent(expected))

    def alike(self, expected: torch.Tensor) -> OutputCheck:
        """The check of another output whose inputs have the same distribution; no probes are tried on it."""
        extent = measure_extent(expected)
        limit = limit_of(self.error_cap, extent)
        return attrs.evolve(self, rule=attrs.evolve(self.rule, limit=limit), extent=extent)

    def is_right(self, comparison: Comparison) -> bool:
        """Whether a comparison by this check is good enough."""
        return comparison.is_within(self.required_matched_ratio)

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace."""
        return {
            "atol": self.rule.atol,
            "rtol": self.rule.rtol,
            "required_matched_ratio": self.required_matched_ratio,
            "error_cap": self.error_cap,
            "is_tightened": self.is_tightened,
            "insensitive_to": list(self.insensitive_to),
            "undefined_share": self.extent.undefined_share,
            "infinite_share": self.extent.infinite_share,
        }


def examine(name: str, expected: torch.Tensor, inputs: Mapping[str, object], config: ResolvedEvalConfig) -> OutputCheck:
    """Make the check of an expected output, just tight enough to fail known wrong answers."""
    extent = measure_extent(expected)
    rule = _allow_rounding(ErrorLimits.from_config(config, expected, extent), expected, extent)
    loose = OutputCheck(
        name=name,
        rule=rule,
        extent=extent,
        required_matched_ratio=config.required_matched_ratio,
        error_cap=config.error_cap,
    )
    probes = [*_given(inputs, expected), *_derived(expected, rule.rtol)] if extent.count else []
    check = _try_out(loose, probes, expected)
    if check.insensitive_to and expected.dtype.is_floating_point:
        atol = _atol_at_scale(expected, inputs, extent, rule.rtol, config.required_matched_ratio)
        tight = attrs.evolve(loose, rule=attrs.evolve(rule, atol=min(rule.atol, atol)), is_tightened=atol < rule.atol)
        tight = _try_out(tight, probes, expected)
        if tight.insensitive_to != check.insensitive_to:
            return tight  # one that rejects no more wrong answers only harms honest ones
    return check


_Checked = TypeVar("_Checked", bound=OutputCheck)


def with_blind_spots(check: _Checked, expected: torch.Tensor, inputs: Mapping[str, object]) -> _Checked:
    """The check with the result of trying zeros and each input as the output."""
    return _try_out(check, list(_given(inputs, expected)) if check.extent.count else [], expected)


def insensitive_to_all(checks: Iterable[OutputCheck]) -> tuple[str, ...]:
    """Wrong answers that pass a check of this output and fail none, whatever the input distribution."""
    checks = list(checks)
    passing = dict.fromkeys(probe for check in checks for probe in check.insensitive_to)
    rejected = {probe for check in checks for probe in check.rejects}
    return tuple(probe for probe in passing if probe not in rejected)


Answer = Callable[[torch.Tensor, int], torch.Tensor]
"""Gives a piece of a wrong answer in float64, from the same piece of the expected output and its start."""


@attrs.frozen
class _Probe:
    """A wrong answer."""

    name: str
    answer: Answer
    is_derived: bool = False
    """Derived from the expected output: where both are equal it is not a wrong answer."""


def _given(inputs: Mapping[str, object], expected: torch.Tensor) -> Iterator[_Probe]:
    """Answers that do not depend on the output: zeros, and each input that could be returned."""
    yield _Probe(ZEROS, lambda b, _: torch.zeros_like(b))
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and _could_be_returned(value, expected):
            yield _Probe(f"input {name}", _elements_of(value))


def _derived(expected: torch.Tensor, rtol: float) -> Iterator[_Probe]:
    yield _shuffled(expected)
    if rtol > 0:
        factor = 1 + _SCALED_BY * rtol
        yield _Probe(SCALED, lambda b, _: b * factor, is_derived=True)


def _could_be_returned(value: torch.Tensor, expected: torch.Tensor) -> bool:
    is_alike = value.dtype.is_floating_point == expected.dtype.is_floating_point
    return is_alike and is_float4(value) == is_float4(expected) and value.numel() == expected.numel() > 0


def _elements_of(value: torch.Tensor) -> Answer:
    items, per_item = flat(value), 2 if is_float4(value) else 1
    return lambda b, start: to_double(items[start // per_item : (start + b.numel()) // per_item])


def _shuffled(expected: torch.Tensor) -> _Probe:
    """The elements half a tensor ahead, shuffled within a chunk; non-finite elements stay."""
    per_item = 2 if is_float4(expected) else 1
    items, dtype = flat(expected), flat(expected).dtype
    if items.itemsize == 1:
        items = items.view(torch.uint8)  # not every device can pick elements of the smallest floats

    def answer(b: torch.Tensor, start: int) -> torch.Tensor:
        places = _order(b.numel() // per_item, expected.device) + (start // per_item + items.numel() // 2)
        a = to_double(items.index_select(0, places.remainder_(items.numel())).view(dtype))
        return torch.where(a.isfinite(), a, b)

    return _Probe(SHUFFLED, answer, is_derived=True)


@functools.lru_cache(maxsize=2)  # all chunks but the last are of one size, and making it costs more than using it
def _order(count: int, device: torch.device) -> torch.Tensor:
    return torch.randperm(count, generator=torch.Generator(device).manual_seed(0), device=device)


def _try_out(check: _Checked, probes: Sequence[_Probe], expected: torch.Tensor) -> _Checked:
    passing, failing = [], []
    for probe in probes:
        comparison = _compare_answer(check, probe.answer, expected)
        if not comparison.is_within(check.required_matched_ratio):
            failing.append(probe.name)
        elif comparison.max_absolute_error or not probe.is_derived:
            passing.append(probe.name)
    return attrs.evolve(check, insensitive_to=tuple(passing), rejects=tuple(failing))


def _compare_answer(check: OutputCheck, answer: Answer, expected: torch.Tensor) -> Comparison:
    """Compare a wrong answer, on a CPU until it must fail; synchronizes a device once.

    Undefined and infinite elements count as right: an exploit can reproduce infinities.
    """
    rule = check.rule
    found: list[torch.Tensor] = []
    for rows, start, (chunk,) in row_pieces(rule.width, expected):
        b = to_double(chunk)
        piece = Piece.of(rows, start, answer(b, start), b)
        piece.absolute.masked_fill_(~piece.expected.isfinite(), 0)
        found.append(statistics_of(piece, rule, check.wrong(piece), rule.exceeds(piece)))
        if is_on_cpu(expected):
            comparison = comparison_of(check.name, found[-1:], expected, check.extent, rule, "")
            if not comparison.is_within(check.required_matched_ratio):
                return comparison
    return comparison_of(check.name, found, expected, check.extent, rule, "")


def _allow_rounding(rule: ErrorLimits, expected: torch.Tensor, extent: Extent) -> ErrorLimits:
    """The rule with an atol that is not below the rounding errors of sums as large as the outputs."""
    share = _NEAR_ZERO * rule.rtol
    if not expected.dtype.is_floating_point or share * extent.largest <= rule.atol:
        return rule
    return attrs.evolve(rule, atol=max(rule.atol, share * _quantile(expected, extent, 0.5)))


def _atol_at_scale(
    expected: torch.Tensor, inputs: Mapping[str, object], extent: Extent, rtol: float, ratio: float | None
) -> float:
    """An atol that fails zeros and the scaled answer, and no honest rounding; infinite if the output has no scale.

    The scale is the magnitude that all elements stay below but those that may be wrong. Where none
    may, that is the largest of all: a row of small numbers beside one of large numbers has the
    rounding errors of its own, so that a mean over both would be too strict for the second.
    """
    scale = _quantile(expected, extent, ratio)
    if scale == 0:
        return math.inf
    eps, smallest = _steps_of(expected)
    share = min(_MOST, max(_MARGIN * _SCALED_BY * rtol, _STEPS * eps, _SUMMATION))
    extents = [measure_extent(v) for v in inputs.values() if isinstance(v, torch.Tensor) and v.dtype.is_floating_point]
    leftover = _LEFTOVER * max((extent.largest for extent in extents), default=0.0)
    return max(share * scale, _SUBNORMALS * smallest, _SMALLEST_NORMAL, leftover)


def _steps_of(tensor: torch.Tensor) -> tuple[float, float]:
    """The largest rounding step of a dtype, relative, and its smallest, absolute."""
    if is_float4(tensor):
        return 0.5, 0.5
    info = torch.finfo(tensor.dtype)
    return info.eps, info.smallest_normal * info.eps


def _quantile(expected: torch.Tensor, extent: Extent, ratio: float | None) -> float:
    """The magnitude that as many finite elements exceed as may be wrong; 0 if all may be wrong."""
    finite = extent.defined - extent.infinite
    may_be_wrong = 0.0 if ratio is None else (1 - ratio) * extent.defined
    if may_be_wrong == 0:
        return extent.largest
    if may_be_wrong >= finite:
        return 0.0
    items = flat(expected)
    sample = to_double(items[:: math.ceil(items.numel() / _SAMPLE) | 1]).abs_()  # odd: rows have even lengths
    sample = sample.masked_fill_(sample.isinf(), math.nan)
    return float(sample.nanquantile(1 - may_be_wrong / finite, interpolation="lower").nan_to_num(0.0))
