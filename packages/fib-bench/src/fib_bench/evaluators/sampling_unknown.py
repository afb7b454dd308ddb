"""Two-sample tests. For random integers whose distribution is known by the reference's draws alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from ..checking.comparison import Comparison
from .protocol import Case, Check, Observation, Tensors, Verdict
from .sampling_statistics import FALSE_ALARM, LOG_ALARM, chi_square_tail

_MAX_ELEMENTS = 256
_MIN_COUNT = 4.0
"""Values that are to be expected more seldom in the smaller sample count as one."""


@attrs.frozen(eq=False, kw_only=True)
class UnknownDraws(Check):
    """Outputs of random integers."""

    bounds: tuple[int, int] | None
    """The smallest and the largest allowed value; None if unknown."""
    seen: Tensors
    """``[calls, elements]`` by output: the draws of the reference."""
    trials: int = attrs.field()
    once: Tensors = attrs.field(factory=dict)
    """The draw of a reference that was called once; empty if the reference is deterministic."""

    @classmethod
    def without_draws(cls, case: Case) -> UnknownDraws:
        """The check of an input set on which the reference was called once only.

        Single calls are checked by the bounds, and many together by pairs of draws.
        """
        first = case.first
        varies = isinstance(first, UnknownDraws) and any(bool((t != t[:1]).any()) for t in first.seen.values())
        once = {name: t.flatten().long().cpu() for name, t in case.expected.items()} if varies else {}
        return cls(bounds=_bounds(case, [case.expected]), seen={}, trials=0, once=once)

    @property
    def is_observed(self) -> bool:
        """Whether the outputs of timed calls are kept, to be judged together."""
        return self.trials > 0 or bool(self.once)

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace."""
        return {name: {"compared_with_calls": len(calls)} for name, calls in self.seen.items()}

    def compare(self, found: Tensors, expected: Tensors) -> Verdict:
        """Whether everything is within the bounds."""
        comparisons, problems = [], []
        for name in expected:
            wrong = 0
            if self.bounds is not None and found[name].numel():
                low, high = self.bounds
                wrong = int(((found[name] < low) | (found[name] > high)).sum())
            comparisons.append(Comparison(name, found[name].numel(), wrong, 0.0, 0.0, 0.0, ""))
            if wrong:
                problems.append(f"output {name!r}: {wrong} of {found[name].numel()} are not within {self.bounds}")
        return Verdict(tuple(comparisons), tuple(problems))


def watch_unknown(case: Case, seen: Sequence[Tensors], trials: float) -> UnknownDraws:
    """The check of an input set on which the reference was called many times."""
    calls = [case.expected, *seen]
    tables = {name: torch.stack([c[name].flatten().long().cpu() for c in calls]) for name in case.expected}
    return UnknownDraws(bounds=_bounds(case, calls), seen=tables, trials=int(trials))


def _bounds(case: Case, calls: Sequence[Tensors]) -> tuple[int, int] | None:
    """From 0 to the vocabulary's end, or as far as the reference goes beyond; None without a vocabulary."""
    tensors = [value for value in case.inputs.values() if isinstance(value, torch.Tensor) and value.dim() > 1]
    sizes = [tensor.shape[-1] for tensor in tensors if tensor.dtype.is_floating_point]
    values = [t for call in calls for t in call.values() if t.numel()]
    if not sizes or not values:
        return None
    return min(0, *(int(t.min()) for t in values)), max(max(sizes) - 1, *(int(t.max()) for t in values))


def judge_unknown(observations: Sequence[Observation]) -> Verdict:
    """Compare observed draws with those of the reference, element by element."""
    problems, extra = _judge_pairs(observations), {}
    for check in dict.fromkeys(o.check for o in observations):
        if not isinstance(check, UnknownDraws):
            continue
        for name, reference in check.seen.items():
            calls = [o.outputs[name].flatten().long().cpu() for o in observations if o.check is check]
            total, freedom = _two_samples(torch.stack(calls), reference)
            extra[name] = {"calls": len(calls), "chi_square": round(total, 2), "freedom": freedom}
            if freedom and chi_square_tail(total, freedom) < FALSE_ALARM:
                problems.append(
                    f"output {name!r} is distributed otherwise than the reference's over {len(calls)} and "
                    f"{len(reference)} calls: chi-square is {total:.0f} with {freedom} degrees of freedom"
                )
    return Verdict(problems=tuple(problems), extra={"sampling": extra})


def _judge_pairs(observations: Sequence[Observation]) -> list[str]:
    """Compare one draw for each input set with the reference's draw for it.

    The two of a pair have the same distribution, which is another one in each pair: so a right sampler is
    the larger in half of the pairs that differ, and has a bit alone in half of those that differ in it.
    """
    first = {o.check: o.outputs for o in observations if isinstance(o.check, UnknownDraws) and o.check.once}
    problems = []
    for name in dict.fromkeys(name for check in first for name in check.once):
        pairs = [(out[name].flatten().long().cpu(), check.once[name]) for check, out in first.items()]
        found, expected = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        if _is_uneven(found > expected, found < expected):
            problems.append(f"output {name!r} is not as large as the reference's over {len(first)} input sets")
        for bit in range(int(torch.maximum(found, expected).max()).bit_length()):
            a, b = ((tokens >> bit) & 1 for tokens in (found, expected))
            if _is_uneven(a > b, a < b):
                problems.append(
                    f"bit {bit} of output {name!r} is set too often or too seldom over {len(first)} input sets"
                )
    return problems


def _is_uneven(more: torch.Tensor, less: torch.Tensor) -> bool:
    """Whether two counts that should be alike differ by more than chance explains (Hoeffding's inequality)."""
    a, b = int(more.sum()), int(less.sum())
    return abs(a - b) > math.sqrt(2 * (a + b) * LOG_ALARM)


def _two_samples(found: torch.Tensor, reference: torch.Tensor) -> tuple[float, int]:
    """Chi-square and its degrees of freedom, summed over the elements of ``[calls, elements]``."""
    total, freedom = 0.0, 0
    step = max(1, -(-reference.shape[1] // _MAX_ELEMENTS))
    for element in range(0, reference.shape[1], step):
        statistic, degrees = _homogeneity(found[:, element], reference[:, element])
        total, freedom = total + statistic, freedom + degrees
    return total, freedom


def _homogeneity(found: torch.Tensor, reference: torch.Tensor) -> tuple[float, int]:
    """Chi-square of two samples of integers."""
    values, codes = torch.cat([found, reference]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    tables = [
        torch.bincount(part, minlength=len(values)).double() for part in (codes[: len(found)], codes[len(found) :])
    ]
    least = _MIN_COUNT * len(codes) / max(min(len(found), len(reference)), 1)
    is_frequent = tables[0] + tables[1] >= least
    a, b = (torch.cat([table[is_frequent], table[~is_frequent].sum().reshape(1)]) for table in tables)
    is_there = a + b >= least
    a, b = a[is_there], b[is_there]
    if len(a) < 2:
        return 0.0, 0
    ratio = (b.sum() / a.sum()).sqrt()
    return float(((a * ratio - b / ratio).square() / (a + b)).sum()), len(a) - 1
