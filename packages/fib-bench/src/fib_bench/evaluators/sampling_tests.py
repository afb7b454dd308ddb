"""Statistical tests of draws, over calls and rows with different distributions.

Timed calls have inputs of their own, so there are few draws from each distribution. Each draw is
turned into numbers whose distribution is known whatever the row's is, if the sampler is right:

- its quantile, uniform between 0 and 1: once with the tokens in the order of their probability, which
  shows cut tails and stale thresholds, and once in the order of their ids, which shows samplers that
  read a contiguous part of the vocabulary;
- the difference of two quantiles, uniform as well (modulo 1): of two rows of one call, which shows
  samplers that use one random number for all rows, and of two successive draws of one row, which
  shows a counter in place of random numbers;
- its log-probability, whose mean shows wrong temperatures and stale distributions;
- each bit of the token id, which shows samplers that skip every other token or tile.

Rows with many draws are also compared one by one, by the total variation distance, of which a right sampler has some.

Source: the randomised probability integral transform (Smith, 1985); Bernstein's inequality; the exact mean of the
absolute deviation of a binomial count (de Moivre, 1730); McDiarmid's inequality.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch

FALSE_ALARM = 1e-10
"""Probability of a false alarm of each test. Small counts have heavier tails than chi-square, so it is about 1e-7."""
LOG_ALARM = -math.log(FALSE_ALARM)
_SIGMAS = 6.0
"""Quantile of the normal distribution whose tail is about as small."""
_DRAWS_PER_BIN, _MAX_BINS = 50, 32
_MIN_LOG_VARIANCE = 1e-8
"""Variance of logarithms below which they differ by rounding only."""
_MAX_ELEMENTS = 256
_MIN_COUNT = 4.0
"""Values that are to be expected more seldom in the smaller sample count as one."""
_MAX_UNSORTED_DRAWS = 4
"""Limit of the draws of a row that are compared with all its tokens, without sorting it."""
_QUANTILES = {
    "probability": "tokens of different likelihood are drawn in the wrong proportion",
    "id": "tokens of different parts of the vocabulary are drawn in the wrong proportion",
    "rows": "rows of one call depend on each other",
    "draws": "successive draws of a row depend on each other",
}
"""The fault that is shown by numbers of a kind that are not uniform."""


@attrs.define
class _Sum:
    """A sum of independent numbers, with its mean and its variance."""

    found: torch.Tensor | float = 0.0
    mean: torch.Tensor | float = 0.0
    variance: torch.Tensor | float = 0.0

    def add(self, found: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> None:
        self.found = found + self.found
        self.mean = mean + self.mean
        self.variance = variance + self.variance

    def numbers(self) -> list[list[float]]:
        """``[[found, mean, variance], ...]``; waits for the device."""
        parts = [torch.as_tensor(part, dtype=torch.float64) for part in (self.found, self.mean, self.variance)]
        rows: list[list[float]] = torch.stack([part.reshape(-1) for part in parts], dim=1).tolist()
        return rows


@attrs.define
class PooledDraws:
    """The tests over all rows; draws are added call by call.

    Args:
        generator: Random numbers that a sampler cannot foresee.
    """

    generator: torch.Generator
    draws: int = 0
    _uniform: Mapping[str, list[torch.Tensor]] = attrs.field(factory=lambda: {kind: [] for kind in _QUANTILES})
    _logarithms: _Sum = attrs.field(factory=_Sum)
    _bits: _Sum = attrs.field(factory=_Sum)

    def add(self, weights: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor) -> None:
        """Add draws of independent rows.

        Args:
            weights: ``[rows, vocabulary]``, float64, the probabilities; rows sum to 1, and a row with a
                single token says nothing.
            tokens: ``[rows, draws]``, int64, within the vocabulary.
            counts: ``[rows, draws]``, whether a draw is to be tested.
        """
        if weights.shape[1] < 2:
            return
        counts = counts & ((weights > 0).sum(dim=1, keepdim=True) > 1)
        per_row = counts.sum(dim=1, dtype=torch.float64)
        p = weights.gather(1, tokens)
        self._add_quantiles(weights, tokens, p, counts)
        self._add_logarithms(weights, p, counts, per_row)
        self._add_bits(weights, tokens[counts], per_row[:, None])
        self.draws += int(per_row.sum())

    def _add_quantiles(
        self, weights: torch.Tensor, tokens: torch.Tensor, p: torch.Tensor, counts: torch.Tensor
    ) -> None:
        above, equal = _mass_above(weights, p)
        below = weights.cumsum(dim=1).gather(1, tokens) - p
        by_id = below + self._random(p) * p
        self._uniform["probability"].append((above + self._random(p) * equal)[counts].cpu())
        self._uniform["id"].append(by_id[counts].cpu())
        self._uniform["rows"].append(_differences(by_id, counts).cpu())
        self._uniform["draws"].append(_differences(by_id.T, counts.T).cpu())

    def _random(self, like: torch.Tensor) -> torch.Tensor:
        return torch.rand(like.shape, generator=self.generator, dtype=torch.float64).to(like.device)

    def _add_logarithms(
        self, weights: torch.Tensor, p: torch.Tensor, counts: torch.Tensor, per_row: torch.Tensor
    ) -> None:
        log = weights.clamp(min=1e-300).log()
        mean = (weights * log).sum(dim=1)
        variance = (weights * (log - mean[:, None]).square()).sum(dim=1)
        is_telling = variance > _MIN_LOG_VARIANCE
        excess = torch.where(counts, p.clamp(min=1e-300).log() - mean[:, None], 0.0).sum(dim=1)
        excess, per_row = (torch.where(is_telling, numbers, 0.0) for numbers in (excess, per_row))
        self._logarithms.add(excess.sum(), torch.zeros_like(excess.sum()), (per_row * variance).sum())

    def _add_bits(self, weights: torch.Tensor, drawn: torch.Tensor, per_row: torch.Tensor) -> None:
        ids = torch.arange(weights.shape[1], device=weights.device)
        bits = torch.stack([(ids >> bit) & 1 for bit in range((len(ids) - 1).bit_length())], dim=1).double()
        share = (weights @ bits).clamp(max=1.0)  # a sum over all tokens can round to more than 1
        self._bits.add(bits[drawn].sum(dim=0), (per_row * share).sum(dim=0), (per_row * share * (1 - share)).sum(dim=0))

    def problems(self) -> list[str]:
        """The problems; waits for the device."""
        return [*self._temperature(), *self._proportions(), *self._bit_counts()] if self.draws else []

    def _temperature(self) -> list[str]:
        ((excess, _, variance),) = self._logarithms.numbers()
        sigmas = excess / math.sqrt(variance) if variance > 0 else 0.0
        if abs(sigmas) < _SIGMAS:
            return []
        kind = "too often" if sigmas > 0 else "too seldom"
        mean = excess / self.draws
        off = f"the mean log-probability is off by {mean:+.3f}, {abs(sigmas):.0f} standard errors"
        return [f"likely tokens are drawn {kind}: {off}"]

    def _proportions(self) -> list[str]:
        problems = []
        for kind, problem in _QUANTILES.items():
            numbers = torch.cat(self._uniform[kind])
            bins = min(_MAX_BINS, len(numbers) // _DRAWS_PER_BIN)
            found = _chi_square(numbers, bins) if bins > 1 else 0.0
            if found and _chi_square_tail(found, bins - 1) < FALSE_ALARM:
                off = f"chi-square of {len(numbers)} numbers is {found:.0f} with {bins - 1} degrees of freedom"
                problems.append(f"{problem}: {off}")
        return problems

    def _bit_counts(self) -> list[str]:
        rows = enumerate(self._bits.numbers())
        off = [(abs(row[0] - row[1]), bit, row) for bit, row in rows if _is_off(*row)]
        if not off:
            return []
        _, bit, (found, mean, _) = max(off)
        return [f"tokens whose id has bit {bit} are drawn {found:.0f} times, {mean:.0f} are to be expected"]


@attrs.define
class RowDistances:
    """The total variation distances of rows with many draws; draws are added row by row.

    Args:
        threshold: The distance that is allowed beyond that of a right sampler.
    """

    threshold: float
    problems: list[str] = attrs.field(factory=list)
    _distance: float = 0.0
    _usual_distance: float = 0.0
    _draws: int = 0

    def add(self, label: str, probabilities: torch.Tensor, places: torch.Tensor) -> None:
        """Add the draws of one row; a row with a single allowed token carries no information.

        Args:
            label: Which row, in words.
            probabilities: ``[tokens]``, float64; they sum to 1.
            places: ``[draws]``: indices into them.
        """
        count = len(places)
        if len(probabilities) < 2 or not count:
            return
        shares = torch.bincount(places, minlength=len(probabilities)).double() / count
        distance = float((shares - probabilities).abs().sum()) / 2
        usual = usual_distance(probabilities, count)
        self._draws += count
        self._distance += distance * count
        self._usual_distance += usual * count
        if distance - usual > self._allowed(count):
            self.problems.append(
                f"{label} is drawn from another distribution: its total variation distance over {count} "
                f"draws is {distance:.3f}, of a right sampler about {usual:.3f}, at most "
                f"{self._allowed(count):.3f} more is allowed"
            )

    def _allowed(self, draws: int) -> float:
        return max(self.threshold, math.sqrt(LOG_ALARM / (2 * draws)))

    def conclude(self) -> Sequence[str]:
        """The problems: over all rows first, then in single ones."""
        if not self._draws:
            return ()
        found, usual = self._distance / self._draws, self._usual_distance / self._draws
        if found - usual <= self._allowed(self._draws):
            return self.problems
        text = f"the total variation distance is {found:.3f} on average, of a right sampler about {usual:.3f}"
        return (text, *self.problems)

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace; nothing where no row had enough draws."""
        if not self._draws:
            return {}
        return {
            "total_variation": round(self._distance / self._draws, 4),
            "total_variation_of_a_right_sampler": round(self._usual_distance / self._draws, 4),
        }


def usual_distance(probabilities: torch.Tensor, draws: int) -> float:
    """The mean total variation distance between a distribution and the draws of a right sampler."""
    p, n = probabilities.clamp(max=1 - 1e-15), float(draws)
    v = (n * p).floor() + 1
    log = (
        math.log(2) + v.log() + math.lgamma(n + 1) - (v + 1).lgamma() - (n - v + 1).lgamma()
        + torch.xlogy(v, p) + (n - v + 1) * (-p).log1p()
    )  # fmt: skip
    return float(torch.where(p > 0, log.exp(), 0.0).sum()) / (2 * draws)


def problem_of_samples(name: str, found: torch.Tensor, reference: torch.Tensor) -> str:
    """Compare draws on one input set with those of the reference; empty if they may have the same distribution.

    Args:
        name: The output.
        found: ``[calls, elements]``, int64.
        reference: ``[calls, elements]``, int64; another number of calls.
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


def problems_of_pairs(name: str, found: torch.Tensor, expected: torch.Tensor) -> list[str]:
    """Compare single draws on many input sets with those of the reference.

    The two of a pair have the same distribution, which is another one in each pair: so a right sampler is
    the larger in half of the pairs that differ, and has a bit alone in half of those that differ in it.

    Args:
        name: The output.
        found: ``[pairs]``, int64.
        expected: ``[pairs]``, the reference's.
    """
    problems = []
    if _is_uneven(found > expected, found < expected):
        problems.append(f"output {name!r} is not as large as the reference's over {len(found)} pairs of draws")
    for bit in range(int(torch.maximum(found, expected).max()).bit_length()):
        a, b = ((tokens >> bit) & 1 for tokens in (found, expected))
        if _is_uneven(a > b, a < b):
            problems.append(f"bit {bit} of output {name!r} is set too often or too seldom over {len(found)} pairs")
    return problems


def _is_uneven(more: torch.Tensor, less: torch.Tensor) -> bool:
    """Whether two counts that should be alike differ by more than chance explains (Hoeffding's inequality)."""
    a, b = int(more.sum()), int(less.sum())
    return abs(a - b) > math.sqrt(2 * (a + b) * LOG_ALARM)


def _chi_square(uniform: torch.Tensor, bins: int) -> float:
    """Pearson's statistic of numbers that should be uniform between 0 and 1."""
    counts = torch.bincount((uniform * bins).long().clamp_(0, bins - 1), minlength=bins).double()
    expected = len(uniform) / bins
    return float((counts - expected).square().sum()) / expected


def _chi_square_tail(statistic: float, freedom: int) -> float:
    """The probability that a right sampler exceeds a value."""
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _differences(quantiles: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Differences modulo 1 of disjoint pairs of rows ``[rows, draws]``, where both draws count."""
    even = len(quantiles) // 2 * 2
    first, second = quantiles[0:even:2], quantiles[1:even:2]
    return (first - second)[counts[0:even:2] & counts[1:even:2]] % 1.0


def _is_off(found: float, mean: float, variance: float) -> bool:
    """Bernstein's inequality, for a sum of draws of which each counts 0 or 1."""
    return abs(found - mean) > math.sqrt(2 * variance * LOG_ALARM) + 2 * LOG_ALARM / 3


def _mass_above(weights: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The probability of all tokens that are more likely than those of `p` ``[rows, draws]``, and of equal ones."""
    if p.shape[1] <= _MAX_UNSORTED_DRAWS:
        columns = [(weights > one[:, None], weights == one[:, None]) for one in p.unbind(dim=1)]
        above, equal = ([(weights * mask).sum(dim=1) for mask in masks] for masks in zip(*columns, strict=True))
        return torch.stack(above, dim=1), torch.stack(equal, dim=1)
    ordered = weights.sort(dim=1).values
    sums = torch.nn.functional.pad(ordered.cumsum(dim=1), (1, 0))
    p = p.contiguous()
    first, last = (torch.searchsorted(ordered, p, right=right) for right in (False, True))
    upto, before = sums.gather(1, last), sums.gather(1, first)
    return sums[:, -1:] - upto, upto - before
