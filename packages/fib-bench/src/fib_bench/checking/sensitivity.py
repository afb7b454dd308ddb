"""Sensitivity of checks. Known wrong answers are tried before a solution is judged.

A tolerance that suits outputs around 1 accepts anything where all outputs are tiny. So each expected
output is compared with wrong answers: zeros, each input of its size, its own elements shuffled, and
itself scaled by 1 + 5 rtol. If one would pass, atol is lowered to the output's scale. Answers that pass
even then are reported, because the check is insensitive to them. Undefined elements are ignored.

Where outputs are large, atol is raised instead: an element near zero is then a difference of large sums,
and has their rounding errors. Tensor cores cut off the bits that a float32 sum cannot hold; simulated for
28,672 products of normally distributed halves, that leaves errors of 4.5e-5 of the outputs' standard deviation
(1.3e-5 for 8,192), 0.004 near zero where outputs are around 169; 2 of 32,768 elements exceed an atol and rtol of
0.01 against a sum in another order. The raised atol is 15 times that error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import attrs
import torch

from ..config.model import ResolvedEvalConfig
from .comparison import (
    Answer,
    Comparison,
    ErrorLimits,
    Extent,
    compare_by,
    count_wrong,
    is_enough,
    limit_of,
    measure_extent,
)
from .elements import dtype_name, flat, is_float4, to_double

ZEROS, SHUFFLED, SCALED = "zeros", "shuffled", "scaled"

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
"""Elements from which a quantile is taken."""


@attrs.frozen
class OutputCheck:
    """The check of one output of one input set, and the wrong answers that it accepts."""

    name: str
    rule: ErrorLimits
    extent: Extent
    required_matched_ratio: float | None
    error_cap: float
    is_tightened: bool
    """Whether `atol` was lowered to the output's scale."""
    insensitive_to: tuple[str, ...]
    """Wrong answers that pass: ``zeros``, ``input NAME``, ``shuffled``, ``scaled``."""
    rejects: tuple[str, ...]
    """Wrong answers that fail. An answer that happens to be right, such as equal elements shuffled, is in neither."""

    @property
    def atol(self) -> float:
        """The absolute tolerance in force."""
        return self.rule.atol

    @property
    def rtol(self) -> float:
        """The relative tolerance in force."""
        return self.rule.rtol

    @property
    def undefined_share(self) -> float:
        """The share of expected elements that are NaN; anything passes there."""
        return self.extent.undefined_share

    @property
    def infinite_share(self) -> float:
        """The share of expected elements that are infinite; only the same passes there."""
        return self.extent.infinite_share

    def compare(self, found: torch.Tensor, expected: torch.Tensor) -> Comparison:
        """Compare an output of a solution with the examined output; synchronizes the device once."""
        return compare_by(self.rule, self.name, found, expected, self.extent)

    def compare_calls(self, found: torch.Tensor, expected: torch.Tensor) -> Comparison:
        """Compare the outputs of several calls on inputs of the same distribution, ``[calls, *shape]`` each.

        Elements are judged as by `alike`; rows and the limit are not, which matter only where some are wrong.
        """
        return compare_by(self.rule, self.name, found, expected, measure_extent(expected))

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
            "atol": self.atol,
            "rtol": self.rtol,
            "required_matched_ratio": self.required_matched_ratio,
            "error_cap": self.error_cap,
            "is_tightened": self.is_tightened,
            "insensitive_to": list(self.insensitive_to),
            "undefined_share": self.undefined_share,
            "infinite_share": self.infinite_share,
        }


def examine(name: str, expected: torch.Tensor, inputs: Mapping[str, object], config: ResolvedEvalConfig) -> OutputCheck:
    """Make the check of an expected output, just tight enough to fail known wrong answers.

    Args:
        name: The output's name.
        expected: The output of the reference.
        inputs: The inputs of the reference; only tensors matter.
        config: The settings in force.
    """
    extent = measure_extent(expected)
    rule = loose = _allow_rounding(ErrorLimits.from_config(config, dtype_name(expected), extent), expected, extent)
    ratio = config.required_matched_ratio
    probes = list(_probes(expected, inputs, rule.rtol)) if extent.count else []
    passing, failing = _try_out(probes, expected, loose, extent, ratio)
    if passing and expected.dtype.is_floating_point:
        tight = attrs.evolve(loose, atol=min(loose.atol, _atol_at_scale(expected, inputs, extent, loose.rtol, ratio)))
        left, caught = _try_out(probes, expected, tight, extent, ratio)
        if left != passing:  # a tighter rule that rejects no more wrong answers only harms honest ones
            rule, passing, failing = tight, left, caught
    return OutputCheck(
        name=name,
        rule=rule,
        extent=extent,
        required_matched_ratio=ratio,
        error_cap=config.error_cap,
        is_tightened=rule != loose,
        insensitive_to=passing,
        rejects=failing,
    )


class Sensitive(Protocol):
    """A check with known wrong answers that it accepts."""

    @property
    def insensitive_to(self) -> tuple[str, ...]:
        """Wrong answers that pass."""
        ...

    @property
    def rejects(self) -> tuple[str, ...]:
        """Wrong answers that fail."""
        ...


def insensitive_to_all(checks: Iterable[Sensitive]) -> tuple[str, ...]:
    """Wrong answers that pass a check of this output and fail none, whatever the input distribution."""
    checks = list(checks)
    passing = dict.fromkeys(probe for check in checks for probe in check.insensitive_to)
    rejected = {probe for check in checks for probe in check.rejects}
    return tuple(probe for probe in passing if probe not in rejected)


@attrs.frozen
class _Probe:
    """A wrong answer."""

    name: str
    answer: Answer
    is_derived: bool = False
    """Derived from the expected output: where both are equal it is not a wrong answer."""


def _probes(expected: torch.Tensor, inputs: Mapping[str, object], rtol: float) -> Iterator[_Probe]:
    yield _Probe(ZEROS, lambda b, _: torch.zeros_like(b))
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and _could_be_returned(value, expected):
            yield _Probe(f"input {name}", _elements_of(value))
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


def _try_out(
    probes: Iterable[_Probe], expected: torch.Tensor, rule: ErrorLimits, extent: Extent, ratio: float | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the wrong answers that a rule accepts, and of those it rejects; synchronizes the device once.

    Undefined and infinite elements count as right in all of them: an exploit can reproduce infinities.
    """
    counts = [(probe, _count(probe, expected, rule, extent, ratio)) for probe in probes]
    if not counts:
        return (), ()
    passing, failing = [], []
    table = torch.stack([count for _, count in counts]).tolist()
    for (probe, _), (different, wrong, capped, bad_rows) in zip(counts, table, strict=True):
        if not is_enough(wrong, capped, bad_rows, extent.defined, ratio):
            failing.append(probe.name)
        elif different or not probe.is_derived:
            passing.append(probe.name)
    return tuple(passing), tuple(failing)


def _count(
    probe: _Probe, expected: torch.Tensor, rule: ErrorLimits, extent: Extent, ratio: float | None
) -> torch.Tensor:
    """The counts of `count_wrong`. On a CPU the count ends as soon as the answer must fail."""

    def must_fail(wrong: int, capped: int) -> bool:
        return not is_enough(wrong, capped, 0, extent.defined, ratio)

    return count_wrong(probe.answer, expected, rule, has_undefined=extent.undefined > 0, must_fail=must_fail)


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
