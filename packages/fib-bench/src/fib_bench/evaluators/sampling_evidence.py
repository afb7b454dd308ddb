"""Whether draws come from the distributions that they should come from.

Each draw is turned into a number that is uniform between 0 and 1 for every right sampler, whatever
its row: the probability of all tokens that are more likely, plus a random part of its own. So the
draws of all rows and calls are one sample, which is compared with what is uniform. Other numbers
look where that one is blind: at the mean log-probability (temperatures), at each row with its tokens
in a random order, and at the total variation distance, of which a right sampler has some as well.

Source: the randomised probability integral transform (Smith, 1985); the exact mean of the absolute
deviation of a binomial count (de Moivre, 1730); McDiarmid's inequality.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import torch

FALSE_ALARM = 1e-10
"""Of each test. Tails of small counts are heavier than those of chi-square, by which it grows to 1e-7 or so."""
LOG_ALARM = -math.log(FALSE_ALARM)
_SIGMAS = 6.0
"""Where the tail of a normal number is about as small."""
_LEAST_VARIANCE = 1e-8
"""Of logarithms: below, they differ by rounding only."""
_PER_BIN, _MOST_BINS = 50, 32
_PER_ROW_BIN, _MOST_ROW_BINS = 12, 16


@attrs.frozen(eq=False)
class RowDraws:
    """Some draws from one distribution."""

    label: str
    """Where they come from, in words."""
    probabilities: torch.Tensor
    """``[tokens]``, float64, the most likely first; they sum to 1."""
    places: torch.Tensor
    """``[draws]``: indices into them."""


@attrs.define
class Evidence:
    """Gathers draws, row by row.

    Args:
        generator: Random numbers that a sampler cannot foresee.
        tvd_threshold: The distance that is allowed beyond that of a right sampler.
    """

    generator: torch.Generator
    tvd_threshold: float
    problems: list[str] = attrs.field(factory=list)
    _uniforms: list[torch.Tensor] = attrs.field(factory=list)
    _log_excess: float = 0.0
    _log_variance: float = 0.0
    _chi_square: float = 0.0
    _freedom: int = 0
    _distance: float = 0.0
    _usual_distance: float = 0.0
    _draws: int = 0

    def add(self, row: RowDraws) -> None:
        """Take the draws of one row; one with a single token says nothing."""
        p, places = row.probabilities, row.places
        if len(p) < 2 or not len(places):
            return
        self._draws += len(places)
        before = p.cumsum(0) - p
        self._uniforms.append(before[places] + self._random(len(places)) * p[places])
        self._add_logarithms(p, places)
        self._add_distance(row)
        self._add_shuffled(row)

    def _random(self, count: int) -> torch.Tensor:
        return torch.rand(count, generator=self.generator, dtype=torch.float64)

    def _add_logarithms(self, p: torch.Tensor, places: torch.Tensor) -> None:
        log = p.clamp(min=1e-300).log()
        mean = float((p * log).sum())
        variance = float((p * (log - mean).square()).sum())
        if variance > _LEAST_VARIANCE:
            self._log_excess += float(log[places].sum()) - len(places) * mean
            self._log_variance += len(places) * variance

    def _add_distance(self, row: RowDraws) -> None:
        count = len(row.places)
        shares = torch.bincount(row.places, minlength=len(row.probabilities)).double() / count
        distance = float((shares - row.probabilities).abs().sum()) / 2
        usual = usual_distance(row.probabilities, count)
        self._distance += distance * count
        self._usual_distance += usual * count
        if distance - usual > self._allowed(count):
            self.problems.append(
                f"{row.label} is drawn from another distribution: its total variation distance over {count} "
                f"draws is {distance:.3f}, of a right sampler about {usual:.3f}, at most "
                f"{self._allowed(count):.3f} more is allowed"
            )

    def _allowed(self, draws: int) -> float:
        return max(self.tvd_threshold, math.sqrt(LOG_ALARM / (2 * draws)))

    def _add_shuffled(self, row: RowDraws) -> None:
        """Compare the counts of random groups of tokens, all equally likely."""
        bins = min(_MOST_ROW_BINS, len(row.places) // _PER_ROW_BIN)
        if bins < 2:
            return
        order = torch.randperm(len(row.probabilities), generator=self.generator)
        p = row.probabilities[order]
        rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        places = rank[row.places]
        uniform = (p.cumsum(0) - p)[places] + self._random(len(places)) * p[places]
        found = _chi_square(uniform, bins)
        self._chi_square += found
        self._freedom += bins - 1
        if chi_square_tail(found, bins - 1) < FALSE_ALARM:
            self.problems.append(
                f"{row.label} is drawn from another distribution: over {len(places)} draws from {len(p)} tokens, "
                f"chi-square is {found:.0f} with {bins - 1} degrees of freedom"
            )

    def conclude(self) -> list[str]:
        """What is wrong: over all rows first, then in single ones."""
        general = [problem for problem in (self._temperature(), self._bins(), self._rows(), self._far()) if problem]
        return [f"{problem} ({self._draws} draws)" for problem in general] + self.problems

    def _temperature(self) -> str:
        if self._log_variance <= 0:
            return ""
        sigmas = self._log_excess / math.sqrt(self._log_variance)
        if abs(sigmas) < _SIGMAS:
            return ""
        kind = "likely tokens are drawn too often" if sigmas > 0 else "likely tokens are drawn too seldom"
        mean = self._log_excess / self._draws
        return f"{kind}: the mean log-probability is off by {mean:+.3f}, {abs(sigmas):.0f} standard errors"

    def _bins(self) -> str:
        bins = min(_MOST_BINS, self._draws // _PER_BIN)
        if bins < 2:
            return ""
        found = _chi_square(torch.cat(self._uniforms), bins)
        if chi_square_tail(found, bins - 1) >= FALSE_ALARM:
            return ""
        return (
            "tokens of different likelihood are drawn in the wrong proportion: chi-square is "
            f"{found:.0f} with {bins - 1} degrees of freedom"
        )

    def _rows(self) -> str:
        if not self._freedom or chi_square_tail(self._chi_square, self._freedom) >= FALSE_ALARM:
            return ""
        return (
            "rows are drawn from other distributions: chi-square over groups of tokens is "
            f"{self._chi_square:.0f} with {self._freedom} degrees of freedom"
        )

    def _far(self) -> str:
        if not self._draws:
            return ""
        found, usual = self._distance / self._draws, self._usual_distance / self._draws
        if found - usual <= self._allowed(self._draws):
            return ""
        return f"the total variation distance is {found:.3f} on average, of a right sampler about {usual:.3f}"

    def to_extra(self) -> dict[str, Any]:
        """What a trace keeps."""
        draws = max(self._draws, 1)
        return {
            "draws": self._draws,
            "total_variation": round(self._distance / draws, 4),
            "total_variation_of_a_right_sampler": round(self._usual_distance / draws, 4),
        }


def usual_distance(probabilities: torch.Tensor, draws: int) -> float:
    """The mean total variation distance between a distribution and what a right sampler draws from it."""
    p, n = probabilities.clamp(max=1 - 1e-15), float(draws)
    v = (n * p).floor() + 1
    log = (
        math.log(2) + v.log() + math.lgamma(n + 1) - (v + 1).lgamma() - (n - v + 1).lgamma()
        + torch.xlogy(v, p) + (n - v + 1) * (-p).log1p()
    )  # fmt: skip
    return float(torch.where(p > 0, log.exp(), 0.0).sum()) / (2 * draws)


def _chi_square(uniform: torch.Tensor, bins: int) -> float:
    """Pearson's statistic of numbers that should be uniform."""
    counts = torch.bincount((uniform * bins).long().clamp_(0, bins - 1), minlength=bins).double()
    expected = len(uniform) / bins
    return float((counts - expected).square().sum()) / expected


def chi_square_tail(chi_square: float, freedom: int) -> float:
    """How likely a right sampler exceeds a value."""
    half = torch.tensor([freedom / 2, chi_square / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
