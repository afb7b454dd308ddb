"""Pooled tests of draws. One test over calls and rows with different distributions.

Timed calls have inputs of their own, so there are few draws from each distribution. Each draw is
turned into numbers whose distribution is known whatever the row's is, if the sampler is right:

- its quantile, uniform between 0 and 1: once with the tokens in the order of their probability, which
  shows cut tails and stale thresholds, and once in the order of their ids, which shows samplers that
  read a contiguous part of the vocabulary, also where they lack a small part of it;
- the difference of two quantiles, uniform as well (modulo 1): of two rows of one call, which shows
  samplers that use one random number for all rows, and of two successive draws of one row, which
  shows a counter in place of random numbers;
- its log-probability, whose mean shows wrong temperatures and stale distributions;
- each bit of the token id, which shows samplers that skip every other token or tile;
- whether an earlier call has drawn the same token, which shows samplers with a short list of tokens.

Source: the randomised probability integral transform (Smith, 1985); Bernstein's inequality; the
Chernoff bound of a binomial count (1952).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
import torch

from .sampling_statistics import FALSE_ALARM, LOG_ALARM, SIGMAS, chernoff_exponents, chi_square, chi_square_tail

_DRAWS_PER_BIN, _MAX_BINS = 50, 32
_MIN_LOG_VARIANCE = 1e-8
"""Variance of logarithms below which they differ by rounding only."""
_MAX_UNSORTED_DRAWS = 4
"""Limit of the draws of a row that are compared with all its tokens, without sorting it."""


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
    """The pooled tests; draws are added call by call.

    Args:
        generator: Random numbers that a sampler cannot foresee.
    """

    generator: torch.Generator
    draws: int = 0
    _quantiles: list[tuple[torch.Tensor, torch.Tensor]] = attrs.field(factory=list)
    _differences: list[tuple[torch.Tensor, torch.Tensor]] = attrs.field(factory=list)
    """Of quantiles by id: of pairs of rows, and of pairs of successive draws of a row."""
    _logarithms: _Sum = attrs.field(factory=_Sum)
    _bits: _Sum = attrs.field(factory=_Sum)
    _repeats: _Sum = attrs.field(factory=_Sum)
    _drawn: torch.Tensor | None = None
    """``[vocabulary]``, float64: 1 for tokens of earlier calls."""

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
        ids = torch.arange(weights.shape[1], device=weights.device)
        bits = [(ids >> bit) & 1 for bit in range((weights.shape[1] - 1).bit_length())]
        self._add_shares(self._bits, torch.stack(bits, dim=1).double(), weights, tokens, counts)
        if self._drawn is None or len(self._drawn) != weights.shape[1]:
            self._drawn = torch.zeros_like(weights[0])
        self._add_shares(self._repeats, self._drawn[:, None], weights, tokens, counts)
        self._drawn[tokens[counts]] = 1.0
        self.draws += int(per_row.sum())

    def _add_quantiles(
        self, weights: torch.Tensor, tokens: torch.Tensor, p: torch.Tensor, counts: torch.Tensor
    ) -> None:
        above, equal = _mass_above(weights, p)
        below = weights.cumsum(dim=1).gather(1, tokens) - p
        pair = above + self._random(p) * equal, below + self._random(p) * p
        self._quantiles.append((pair[0][counts].cpu(), pair[1][counts].cpu()))
        self._differences.append(
            (_differences(pair[1], counts).cpu(), _differences(pair[1].T, counts.T).cpu()),
        )

    def _random(self, like: torch.Tensor) -> torch.Tensor:
        return torch.rand(like.shape, generator=self.generator, dtype=torch.float64).to(like.device)

    def _add_logarithms(
        self, weights: torch.Tensor, p: torch.Tensor, counts: torch.Tensor, per_row: torch.Tensor
    ) -> None:
        log = weights.clamp(min=1e-300).log()
        mean = (weights * log).sum(dim=1)
        variance = (weights * (log - mean[:, None]).square()).sum(dim=1)
        per_row = torch.where(variance > _MIN_LOG_VARIANCE, per_row, 0.0)
        excess = torch.where(counts, p.clamp(min=1e-300).log() - mean[:, None], 0.0).sum(dim=1)
        excess = torch.where(variance > _MIN_LOG_VARIANCE, excess, 0.0)
        self._logarithms.add(excess.sum(), torch.zeros_like(excess.sum()), (per_row * variance).sum())

    def _add_shares(
        self, total: _Sum, labels: torch.Tensor, weights: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor
    ) -> None:
        """Count draws of tokens with labels ``[vocabulary, labels]`` of 0 and 1, and how many are to be expected."""
        share = (weights @ labels).clamp(max=1.0)  # a sum over all tokens can round to more than 1
        per_row = counts.sum(dim=1, dtype=torch.float64)[:, None]
        found = labels[tokens[counts]].sum(dim=0)
        total.add(found, (per_row * share).sum(dim=0), (per_row * share * (1 - share)).sum(dim=0))

    def problems(self) -> list[str]:
        """The problems; waits for the device."""
        if not self.draws:
            return []
        tests: list[Callable[[], list[str]]] = [
            self._temperature,
            self._proportions,
            self._small_parts,
            self._dependence,
            self._bit_counts,
            self._repeat_counts,
        ]
        return [problem for test in tests for problem in test()]

    def _temperature(self) -> list[str]:
        ((excess, _, variance),) = self._logarithms.numbers()
        sigmas = excess / math.sqrt(variance) if variance > 0 else 0.0
        if abs(sigmas) < SIGMAS:
            return []
        kind = "too often" if sigmas > 0 else "too seldom"
        mean = excess / self.draws
        off = f"the mean log-probability is off by {mean:+.3f}, {abs(sigmas):.0f} standard errors"
        return [f"likely tokens are drawn {kind}: {off}"]

    def _proportions(self) -> list[str]:
        bins = min(_MAX_BINS, self.draws // _DRAWS_PER_BIN)
        if bins < 2:
            return []
        problems = []
        kinds = "tokens of different likelihood", "tokens of different parts of the vocabulary"
        for kind, parts in zip(kinds, zip(*self._quantiles, strict=True), strict=True):
            found = chi_square(torch.cat(parts), bins)
            if chi_square_tail(found, bins - 1) < FALSE_ALARM:
                off = f"chi-square is {found:.0f} with {bins - 1} degrees of freedom"
                problems.append(f"{kind} are drawn in the wrong proportion: {off}")
        return problems

    def _small_parts(self) -> list[str]:
        """Parts of the vocabulary, down to the smallest that would be drawn if they were not left out."""
        uniform = torch.cat([by_id for _, by_id in self._quantiles])
        bins = _MAX_BINS
        problems: list[str] = []
        while len(uniform) > 2 * bins * LOG_ALARM and not problems:
            bins *= 2
            counts = torch.bincount((uniform * bins).long().clamp_(0, bins - 1), minlength=bins)
            exponents = chernoff_exponents(counts, len(uniform), 1 / bins)
            place = int(exponents.argmax())
            if float(exponents[place]) > LOG_ALARM:
                problems.append(
                    f"tokens of part {place + 1} of {bins} equally likely parts of the vocabulary are drawn "
                    f"{int(counts[place])} times, {len(uniform) / bins:.0f} are to be expected"
                )
        return problems

    def _dependence(self) -> list[str]:
        problems = []
        kinds = "rows of one call", "successive draws of a row"
        for kind, parts in zip(kinds, zip(*self._differences, strict=True), strict=True):
            found = torch.cat(parts)
            bins = min(_MAX_BINS, len(found) // _DRAWS_PER_BIN)
            if bins < 2:
                continue
            statistic = chi_square(found, bins)
            if chi_square_tail(statistic, bins - 1) < FALSE_ALARM:
                off = f"chi-square of {len(found)} differences is {statistic:.0f} with {bins - 1} degrees of freedom"
                problems.append(f"{kind} depend on each other: {off}")
        return problems

    def _bit_counts(self) -> list[str]:
        rows = enumerate(self._bits.numbers())
        off = [(abs(row[0] - row[1]), bit, row) for bit, row in rows if _is_off(*row)]
        if not off:
            return []
        _, bit, (found, mean, _) = max(off)
        return [f"tokens whose id has bit {bit} are drawn {found:.0f} times, {mean:.0f} are to be expected"]

    def _repeat_counts(self) -> list[str]:
        ((found, mean, variance),) = self._repeats.numbers()
        if found < mean or not _is_off(found, mean, variance):
            return []
        return [f"tokens of earlier calls are drawn again {found:.0f} times, {mean:.0f} are to be expected"]


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
