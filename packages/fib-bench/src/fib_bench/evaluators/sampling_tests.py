"""Statistical tests of draws, over calls and rows with different distributions.

Timed calls have inputs of their own, so there are few draws from each distribution. Where the distribution is known,
the judge draws from it as well, once for each draw of the solution; where it is not, the reference does. Then

- the mean log-probability, whose expectation is known, shows wrong temperatures and stale distributions or thresholds;
- in pairs of draws from one distribution neither is larger more often than the other, and neither has a bit of the
  token id more often, which shows samplers that read a part of the vocabulary or skip every other token or tile;
- rows with many draws are compared one by one, by the total variation distance or by chi-square.

Source: Bernstein's, Hoeffding's and McDiarmid's inequalities.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import torch

from ..secure_random import SECRET

FALSE_ALARM = 1e-10
"""Probability of a false alarm of each test. Small counts have heavier tails than chi-square, so it is about 1e-7."""
_LOG_ALARM = -math.log(FALSE_ALARM)
_SIGMAS = 6.0
"""Quantile of the normal distribution whose tail is about as small."""
_MIN_LOG_VARIANCE = 1e-8
"""Variance of logarithms below which they differ by rounding only."""
_MAX_ELEMENTS = 256
_MIN_COUNT = 4.0
"""Values that are to be expected more seldom in the smaller sample count as one."""


def draw(weights: torch.Tensor, count: int) -> torch.Tensor:
    """Draw from rows of weights ``[rows, vocabulary]``, none of which is all zero; ``[rows, count]``."""
    generator = torch.Generator(weights.device).manual_seed(SECRET.getrandbits(62))
    return torch.multinomial(weights, count, replacement=True, generator=generator)


@attrs.define
class PooledDraws:
    """The tests over all rows; draws are added call by call."""

    draws: int = 0
    _excess: float = 0.0
    _variance: float = 0.0
    _pairs: list[tuple[torch.Tensor, torch.Tensor]] = attrs.field(factory=list)

    def add(self, weights: torch.Tensor, tokens: torch.Tensor, own: torch.Tensor, counts: torch.Tensor) -> None:
        """Add draws of independent rows.

        Shapes:
            weights: ``[rows, vocabulary]``, float64, the probabilities; rows sum to 1.
            tokens, own: ``[rows, draws]``, int64, the draws of the solution and of the judge.
            counts: ``[rows, draws]``, whether a draw is to be tested.
        """
        log = weights.clamp(min=1e-300).log()
        mean = (weights * log).sum(dim=1, keepdim=True)
        variance = (weights * (log - mean).square()).sum(dim=1, keepdim=True)
        is_telling = counts & (variance > _MIN_LOG_VARIANCE)
        sums = torch.stack([((log.gather(1, tokens) - mean) * is_telling).sum(), (variance * is_telling).sum()])
        excess, spread = sums.tolist()
        self._excess += excess
        self._variance += spread
        self._pairs.append((tokens[counts].cpu(), own[counts].cpu()))
        self.draws += len(self._pairs[-1][0])

    def problems(self) -> list[str]:
        """The problems, a line each."""
        if not self.draws:
            return []
        found, own = (torch.cat(parts) for parts in zip(*self._pairs, strict=True))
        return [*self._temperature(), *problems_of_pairs("the draws", found, own)]

    def _temperature(self) -> list[str]:
        sigmas = self._excess / math.sqrt(self._variance) if self._variance > 0 else 0.0
        if abs(sigmas) < _SIGMAS:
            return []
        kind = "too often" if sigmas > 0 else "too seldom"
        mean = self._excess / self.draws
        off = f"the mean log-probability is off by {mean:+.3f}, {abs(sigmas):.0f} standard errors"
        return [f"likely tokens are drawn {kind}: {off}"]


@attrs.define
class RowDistances:
    """The total variation distances of rows with many draws, beside those of the judge's own draws.

    The threshold is the distance that is allowed beyond that of the judge's draws.
    """

    threshold: float
    _problems: list[str] = attrs.field(factory=list)
    _distances: tuple[float, float] = (0.0, 0.0)
    _draws: int = 0

    def add(self, label: str, probabilities: torch.Tensor, found: torch.Tensor, own: torch.Tensor) -> None:
        """Add the draws of one row, ``[draws]``, of the solution and of the judge, from ``[tokens]`` probabilities."""
        count = len(found)
        if not count:
            return
        distance, usual = (_distance(draws, probabilities) for draws in (found, own))
        self._draws += count
        self._distances = (self._distances[0] + distance * count, self._distances[1] + usual * count)
        if distance - usual > self._allowed(count):
            self._problems.append(
                f"{label} is drawn from another distribution: its total variation distance over {count} "
                f"draws is {distance:.3f}, of a right sampler {usual:.3f}, at most "
                f"{self._allowed(count):.3f} more is allowed"
            )

    def _allowed(self, draws: int) -> float:
        return max(self.threshold, math.sqrt(_LOG_ALARM / draws))

    def problems(self) -> list[str]:
        """The problems: over all rows first, then in single ones."""
        if not self._draws:
            return []
        found, usual = (distance / self._draws for distance in self._distances)
        if found - usual <= self._allowed(self._draws):
            return self._problems
        text = f"the total variation distance is {found:.3f} on average, of a right sampler {usual:.3f}"
        return [text, *self._problems]

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace; nothing where no row had enough draws."""
        names = ("total_variation", "total_variation_of_a_right_sampler") if self._draws else ()
        return {name: round(sum_ / self._draws, 4) for name, sum_ in zip(names, self._distances, strict=False)}


def _distance(draws: torch.Tensor, probabilities: torch.Tensor) -> float:
    shares = torch.bincount(draws, minlength=len(probabilities)).double() / len(draws)
    return float((shares - probabilities).abs().sum()) / 2


def problem_of_samples(name: str, found: torch.Tensor, reference: torch.Tensor) -> str:
    """Compare draws on one input set with those of the reference; empty if they may have the same distribution.

    Shapes:
        found, reference: ``[calls, elements]``, int64; their numbers of calls may differ.
    """
    step = max(1, -(-reference.shape[1] // _MAX_ELEMENTS))
    parts = [_homogeneity(found[:, i], reference[:, i]) for i in range(0, reference.shape[1], step)]
    total, freedom = sum(part[0] for part in parts), sum(part[1] for part in parts)
    if not freedom or _chi_square_tail(total, freedom) >= FALSE_ALARM:
        return ""
    return (
        f"output {name!r} is distributed otherwise than the reference's over {len(found)} and {len(reference)} calls: "
        f"chi-square is {total:.0f} with {freedom} degrees of freedom"
    )


def _homogeneity(found: torch.Tensor, reference: torch.Tensor) -> tuple[float, int]:
    """Chi-square of two samples of integers, and its degrees of freedom."""
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


def _chi_square_tail(statistic: float, freedom: int) -> float:
    """The probability that a right sampler exceeds a value."""
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def problems_of_pairs(what: str, found: torch.Tensor, expected: torch.Tensor) -> list[str]:
    """Compare single draws from many distributions, ``[pairs]``, with draws of a right sampler from the same ones.

    A right sampler is the larger in half of the pairs that differ, and has a bit alone in half of those that differ
    in it.
    """
    problems = []
    if _is_uneven(found > expected, found < expected):
        side = "higher" if int((found > expected).sum()) * 2 > int((found != expected).sum()) else "lower"
        problems.append(f"{what} have {side} numbers than those of a right sampler over {len(found)} pairs")
    for bit in range(int(torch.maximum(found, expected).max()).bit_length()):
        a, b = ((tokens >> bit) & 1 for tokens in (found, expected))
        if _is_uneven(a > b, a < b):
            problems.append(f"{what} have bit {bit} set too often or too seldom over {len(found)} pairs")
    return problems


def _is_uneven(more: torch.Tensor, less: torch.Tensor) -> bool:
    """Whether two counts that should be alike differ by more than chance explains (Hoeffding's inequality)."""
    a, b = int(more.sum()), int(less.sum())
    return abs(a - b) > math.sqrt(2 * (a + b) * _LOG_ALARM)
