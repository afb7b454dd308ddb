"""Tests of draws row by row. For rows with many draws from one distribution.

They see what pooled tests (`sampling_pooled`) are blind to: each row is compared with its tokens in a
random order, and by the total variation distance, of which a right sampler has some as well.

Source: the exact mean of the absolute deviation of a binomial count (de Moivre, 1730); McDiarmid's
inequality.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import torch

from .sampling_statistics import FALSE_ALARM, LOG_ALARM, chi_square, chi_square_tail

_PER_ROW_BIN, _MAX_ROW_BINS = 12, 16


@attrs.frozen(eq=False)
class RowDraws:
    """Some draws from one distribution."""

    label: str
    """Their origin, in words."""
    probabilities: torch.Tensor
    """``[tokens]``, float64; they sum to 1."""
    places: torch.Tensor
    """``[draws]``: indices into them."""


@attrs.define
class Evidence:
    """The tests of rows; draws are added row by row.

    Args:
        generator: Random numbers that a sampler cannot foresee.
        tvd_threshold: The distance that is allowed beyond that of a right sampler.
    """

    generator: torch.Generator
    tvd_threshold: float
    problems: list[str] = attrs.field(factory=list)
    _chi_square: float = 0.0
    _freedom: int = 0
    _distance: float = 0.0
    _usual_distance: float = 0.0
    _draws: int = 0

    def add(self, row: RowDraws) -> None:
        """Add the draws of one row; a row with a single allowed token carries no information."""
        if len(row.probabilities) < 2 or not len(row.places):
            return
        self._draws += len(row.places)
        self._add_distance(row)
        self._add_shuffled(row)

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
        bins = min(_MAX_ROW_BINS, len(row.places) // _PER_ROW_BIN)
        if bins < 2:
            return
        order = torch.randperm(len(row.probabilities), generator=self.generator)
        p = row.probabilities[order]
        rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        places = rank[row.places]
        random = torch.rand(len(places), generator=self.generator, dtype=torch.float64)
        found = chi_square((p.cumsum(0) - p)[places] + random * p[places], bins)
        self._chi_square += found
        self._freedom += bins - 1
        if chi_square_tail(found, bins - 1) < FALSE_ALARM:
            self.problems.append(
                f"{row.label} is drawn from another distribution: over {len(places)} draws from {len(p)} tokens, "
                f"chi-square is {found:.0f} with {bins - 1} degrees of freedom"
            )

    def conclude(self) -> list[str]:
        """The problems: over all rows first, then in single ones."""
        return [*self._rows(), *self._far(), *self.problems]

    def _rows(self) -> list[str]:
        if not self._freedom or chi_square_tail(self._chi_square, self._freedom) >= FALSE_ALARM:
            return []
        return [
            "rows are drawn from other distributions: chi-square over groups of tokens is "
            f"{self._chi_square:.0f} with {self._freedom} degrees of freedom"
        ]

    def _far(self) -> list[str]:
        if not self._draws:
            return []
        found, usual = self._distance / self._draws, self._usual_distance / self._draws
        if found - usual <= self._allowed(self._draws):
            return []
        return [f"the total variation distance is {found:.3f} on average, of a right sampler about {usual:.3f}"]

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
