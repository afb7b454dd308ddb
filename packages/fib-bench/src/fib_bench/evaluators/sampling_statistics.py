"""Statistics of sampling. Chi-square, and the false-alarm rate that all tests share."""

from __future__ import annotations

import math

import torch

FALSE_ALARM = 1e-10
"""Probability of a false alarm of each test. Small counts have heavier tails than chi-square, so it is about 1e-7."""
LOG_ALARM = -math.log(FALSE_ALARM)
SIGMAS = 6.0
"""Quantile of the normal distribution whose tail is about as small."""


def chi_square(uniform: torch.Tensor, bins: int) -> float:
    """Pearson's statistic of numbers that should be uniform between 0 and 1."""
    counts = torch.bincount((uniform * bins).long().clamp_(0, bins - 1), minlength=bins).double()
    expected = len(uniform) / bins
    return float((counts - expected).square().sum()) / expected


def chi_square_tail(statistic: float, freedom: int) -> float:
    """The probability that a right sampler exceeds a value."""
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def chernoff_exponents(counts: torch.Tensor, draws: int, probability: float) -> torch.Tensor:
    """Exponents of a bound on the probability of binomial counts that are as far from their mean: ``exp(-exponent)``.

    Shapes:
        counts: ``[n]``; the result is float64 ``[n]``.
    """
    share = counts.double() / draws
    other = 1 - share
    divergence = torch.xlogy(share, share / probability) + torch.xlogy(other, other / (1 - probability))
    return draws * divergence
