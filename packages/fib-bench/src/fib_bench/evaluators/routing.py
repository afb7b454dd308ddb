"""Routing ties. Tokens for which several choices of experts are right.

Which of two experts with equal scores takes a token is the kernel's own affair, and in bfloat16
scores are often equal: of 128 experts, the eighth and the ninth are for one token in ten or twenty.
"""

from __future__ import annotations

import re

import attrs
import torch

from .protocol import Case

_LOGITS = re.compile(r".*(rout|gat|logits|scores).*")
_BIAS = re.compile(r".*bias.*")
_TOP_K_AXIS = re.compile(r"(num_)?(top_?k|experts_per_tok(en)?)")
_TOP_K_IN_NAME = re.compile(r"top_?k_?(\d+)")
_GROUPS_IN_NAME = re.compile(r"_ng_?(\d+)_kg_?(\d+)")
_TIE = 2.0**-20
"""Logits nearer to each other than this, relative, may be chosen in any order."""
_SCORE_TIE = 2.0**-19
"""Scores after a sigmoid and with a bias: the exponential is rounded as well. Relative to themselves or to 1."""


@attrs.frozen(eq=False)
class Ties:
    """Tokens whose choice of experts is a matter of rounding."""

    tied: torch.Tensor
    """``[tokens]``"""
    certain_share: torch.Tensor
    """``[tokens]``, float64: the share of a token's experts that every right kernel chooses."""


def find_ties(case: Case) -> Ties | None:
    """Compare the last expert that is chosen with the first that is not; None if the routing is not known.

    With a bias input the scores are ``sigmoid(logits) + bias``, first cut to the best groups if the
    definition's name says how many (``ng8_kg4``).
    """
    chosen = _top_k(case)
    logits = next((v for n, v in case.inputs.items() if _is_logits(n, v)), None)
    if chosen is None or not isinstance(logits, torch.Tensor) or not 0 < chosen < logits.shape[1]:
        return None
    scores = logits.double()
    bias = next((v for n, v in case.inputs.items() if _is_bias(n, v, logits.shape[1])), None)
    if not isinstance(bias, torch.Tensor):
        return _ties(scores, chosen, _TIE * scores.abs())
    scores = scores.sigmoid() + bias.double()
    slack = _SCORE_TIE * scores.abs().clamp(min=1.0)
    groups = _GROUPS_IN_NAME.search(case.definition.name)
    if groups is None:
        return _ties(scores, chosen, slack)
    return _grouped_ties(scores, chosen, int(groups[1]), int(groups[2]))


def _is_logits(name: str, value: object) -> bool:
    is_matrix = isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.dim() == 2
    return is_matrix and _LOGITS.fullmatch(name) is not None


def _is_bias(name: str, value: object, experts: int) -> bool:
    is_vector = isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.shape == (experts,)
    return is_vector and _BIAS.fullmatch(name) is not None


def _ties(scores: torch.Tensor, chosen: int, slack: torch.Tensor) -> Ties:
    """The ties of ``[tokens, experts]`` at the boundary, where scores within `slack` are equal."""
    best, order = scores.topk(chosen + 1, dim=1)
    last, following = best[:, -2], best[:, -1]
    within = slack.gather(1, order)[:, -2:].amax(dim=1)
    certain = (best[:, :-1] > (last + within)[:, None]).sum(dim=1)
    tied = last - following <= within
    return Ties(tied, torch.where(tied, certain.double() / chosen, 1.0))


def _grouped_ties(scores: torch.Tensor, chosen: int, groups: int, kept: int) -> Ties | None:
    """Ties between groups, which are ordered by the sum of their two best scores, and then between experts."""
    tokens, experts = scores.shape
    if experts % groups or experts // groups < 2 or not 0 < kept <= groups or kept * (experts // groups) <= chosen:
        return None
    members = scores.view(tokens, groups, -1)
    sums = members.topk(2, dim=2).values.sum(dim=2)
    best = sums.topk(kept, dim=1)
    is_kept = torch.zeros_like(sums, dtype=torch.bool).scatter_(1, best.indices, True)
    cut = members.masked_fill(~is_kept[:, :, None], -torch.inf).flatten(1)
    ties = _ties(cut, chosen, _SCORE_TIE * scores.abs().clamp(min=1.0))
    if kept == groups:
        return ties
    between = _ties(sums, kept, 2 * _SCORE_TIE * sums.abs().clamp(min=1.0))
    certain = torch.where(between.tied, 0.0, ties.certain_share)  # any of a token's experts may be of another group
    return Ties(ties.tied | between.tied, certain)


def _top_k(case: Case) -> int | None:
    """The number of experts of a token, by an axis or by the definition's name."""
    axes = case.definition.const_axes
    found = next((size for axis, size in axes.items() if _TOP_K_AXIS.fullmatch(axis)), None)
    named = _TOP_K_IN_NAME.search(case.definition.name)
    return found if found is not None else int(named[1]) if named else None
