"""Allowed sets of tokens. Rows of probabilities or logits, cut by top-k, top-p and min-p.

Every filter keeps the most likely tokens, so a row is cut at one level. Where the level itself is a
matter of rounding (a cumulative sum next to top-p) or of taste (equal probabilities at the top-k
boundary), tokens lie between two levels: a sampler may draw them or not.
"""

from __future__ import annotations

import re

import attrs
import torch

from ..inputs.generation import Value
from .protocol import Case

_TIE = 2.0**-20
"""Levels nearer to each other than this, relative, count as equal."""
_LOGIT_TIE = 1e-5
"""For logits, relative to themselves or to 1: an exponential and a division by a temperature are rounded."""
_SUM_ERROR = 2e-5
"""The error of a cumulative sum over a vocabulary in float32."""
_HEAD = 2048
"""The tokens to look at first: sorting all takes ten times as long, and is seldom needed."""
_CHUNK = 1 << 22
_MIN_PROBABILITY = 2.0**-150


@attrs.frozen(eq=False)
class Rows:
    """The probabilities or logits that tokens are drawn from."""

    values: torch.Tensor
    """``[rows, vocabulary]``"""
    is_logits: bool
    temperature: torch.Tensor | None = None
    """``[rows]``, float64"""

    def levels(self, rows: slice | torch.Tensor, tokens: torch.Tensor | None = None) -> torch.Tensor:
        """Numbers in float64 by which tokens are ordered; of all, or of those given, ``[rows, n]``."""
        values = self.values[rows]
        levels = (values if tokens is None else values.gather(1, tokens)).double()
        return levels if self.temperature is None else levels / self.temperature[rows, None]

    def slack(self, levels: torch.Tensor) -> torch.Tensor:
        """Below which difference levels count as equal."""
        return levels.abs().clamp(min=1.0) * _LOGIT_TIE if self.is_logits else levels.abs() * _TIE

    def weights(self, levels: torch.Tensor, total: torch.Tensor | None = None) -> torch.Tensor:
        """Probabilities by levels; of some tokens only, with the logarithm of the sum over all."""
        if not self.is_logits:
            return levels
        return (levels - (levels.logsumexp(-1, keepdim=True) if total is None else total)).exp()


@attrs.frozen(eq=False)
class Filters:
    """The filters of the rows; None where there is no such filter."""

    top_k: torch.Tensor | None = None
    """``[rows]``; values outside of 0 to the vocabulary size disable the filter."""
    top_p: torch.Tensor | None = None
    """``[rows]``, float64; 1 filters nothing, 0 leaves the most likely token."""
    min_p: torch.Tensor | None = None
    """``[rows]``, float64, relative to the most likely token."""
    is_joint: bool = False
    """Top-p of the whole row, instead of the row after top-k."""

    def of(self, rows: slice) -> Filters:
        """The filters of some rows."""
        top_k, top_p, min_p = (None if v is None else v[rows] for v in (self.top_k, self.top_p, self.min_p))
        return Filters(top_k, top_p, min_p, self.is_joint)


@attrs.frozen(eq=False)
class Cuts:
    """The levels at which rows are cut; both ``[rows]`` in float64."""

    sure: torch.Tensor
    """Tokens from this level on are kept for certain."""
    least: torch.Tensor
    """No token below this level is."""


def cut(rows: Rows, filters: Filters) -> Cuts:
    """Find the levels."""
    step = max(1, _CHUNK // max(rows.values.shape[1], 1))
    chunks = [slice(start, start + step) for start in range(0, len(rows.values), step)]
    parts = [_cut_chunk(rows, filters, chunk) for chunk in chunks]
    return Cuts(torch.cat([part.sure for part in parts]), torch.cat([part.least for part in parts]))


def _cut_chunk(rows: Rows, filters: Filters, chunk: slice) -> Cuts:
    levels = rows.levels(chunk)
    floor = torch.full_like(levels[:, 0], torch.finfo(torch.float64).min if rows.is_logits else _MIN_PROBABILITY)
    if filters.top_k is None and filters.top_p is None and filters.min_p is None:
        return Cuts(floor, floor)
    total = levels.logsumexp(-1, keepdim=True) if rows.is_logits else levels[:, :1]
    own = filters.of(chunk)
    count = min(_HEAD, levels.shape[1])
    while True:
        best = levels.topk(count, dim=1).values
        fewest, most = _counts(rows.weights(best, total), own, levels.shape[1])
        last = best.gather(1, (most - 1).clamp(max=count - 1)[:, None])
        is_enough = bool((best[:, -1:] < last - rows.slack(last)).all())  # neither kept nor equal to what is
        if is_enough or count == levels.shape[1]:
            break
        count = levels.shape[1]
    return _levels(rows, best, fewest.clamp(max=count), most.clamp(max=count), floor)


def _counts(weights: torch.Tensor, filters: Filters, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of the most likely tokens that are kept: at least, and at most."""
    sums = weights.cumsum(dim=1)
    before, kept = sums - weights, torch.full_like(weights[:, 0], vocabulary).long()
    whole = torch.ones_like(weights[:, 0])
    if filters.top_k is not None:
        k = filters.top_k
        kept = torch.where((k > 0) & (k < vocabulary), k, kept)
        if not filters.is_joint:
            ends = (kept - 1).clamp(max=weights.shape[1] - 1)
            whole = torch.where(kept < vocabulary, sums.gather(1, ends[:, None])[:, 0], whole)
    fewest = most = kept
    if filters.top_p is not None:
        low, high = (_nucleus(before, filters.top_p, whole, error) for error in (-_SUM_ERROR, _SUM_ERROR))
        is_cut = filters.top_p < 1
        fewest = torch.where(is_cut, torch.minimum(fewest, low), fewest)
        most = torch.where(is_cut, torch.minimum(most, high), most)
    if filters.min_p is not None:
        least = weights[:, :1] * filters.min_p[:, None]
        fewest = torch.minimum(fewest, (weights >= least * (1 + _LOGIT_TIE)).sum(dim=1).clamp(min=1))
        most = torch.minimum(most, (weights >= least * (1 - _LOGIT_TIE)).sum(dim=1))
    return fewest, most


def _nucleus(before: torch.Tensor, top_p: torch.Tensor, whole: torch.Tensor, error: float) -> torch.Tensor:
    """The tokens before which the sum does not exceed top-p: the one that crosses it is kept."""
    reach = torch.where(top_p > 0, (top_p + error) * whole, -1.0)
    return (before <= reach[:, None]).sum(dim=1).clamp(min=1)


def _levels(rows: Rows, best: torch.Tensor, fewest: torch.Tensor, most: torch.Tensor, floor: torch.Tensor) -> Cuts:
    """Levels from counts: where a group of equals is cut in two, all of them lie between the levels."""
    last_sure, last = (best.gather(1, counts[:, None] - 1)[:, 0] for counts in (fewest, most))
    least = torch.maximum(last - rows.slack(last), floor)
    following = best.gather(1, fewest.clamp(max=best.shape[1] - 1)[:, None])[:, 0]
    is_split = (fewest < best.shape[1]) & (following >= last_sure - rows.slack(last_sure)) & (following >= least)
    above = (last_sure + rows.slack(last_sure)).nextafter(torch.full_like(last_sure, torch.inf))
    return Cuts(torch.maximum(torch.where(is_split, above, last_sure), least), least)


_IGNORED = re.compile(r".*(seed|offset|philox|generator|deterministic).*")
_ROLES = {"top_k": r"top_?ks?(_arr|_values)?", "top_p": r"top_?ps?(_arr|_values)?", "min_p": r"min_?ps?(_arr|_values)?",
          "temperature": r"temperatures?|temp"}  # fmt: skip


def _roles(case: Case) -> dict[str, str] | None:
    """The inputs by role; None if the role of one is unknown."""
    found: dict[str, str] = {}
    for name, value in case.inputs.items():
        role = next((role for role, pattern in _ROLES.items() if re.fullmatch(pattern, name)), None)
        if role is None and isinstance(value, torch.Tensor) and value.dim() == 2 and value.dtype.is_floating_point:
            role = "rows"
        if role in found or (role is None and value is not None and not _IGNORED.fullmatch(name)):
            return None
        if role is not None and value is not None:
            found[role] = name
    return found


def find_rows(case: Case) -> tuple[Rows, Filters] | None:
    """The rows of probabilities or logits, and their filters; None if inputs are neither, or do not fit."""
    roles = _roles(case)
    if roles is None or "rows" not in roles or len(case.expected) != 1:
        return None
    rows, (samples,) = _tensor(case.inputs[roles["rows"]]), case.expected.values()
    others = {role: case.inputs[name] for role, name in roles.items() if role != "rows"}
    fit = all(not isinstance(value, torch.Tensor) or value.numel() in {1, len(rows)} for value in others.values())
    if not fit or samples.dim() not in {1, 2} or len(samples) != len(rows) or not len(rows):
        return None
    per_row = {role: _per_row(value, rows) for role, value in others.items()}
    top_k = per_row.get("top_k")
    filters = Filters(None if top_k is None else top_k.long(), per_row.get("top_p"), per_row.get("min_p"))
    return Rows(rows, not _are_probabilities(roles["rows"], rows), per_row.get("temperature")), filters


def _are_probabilities(name: str, rows: torch.Tensor) -> bool:
    if "prob" in name or "logit" in name:
        return "prob" in name
    return bool((rows >= 0).all()) and bool((rows.sum(dim=1, dtype=torch.float64) - 1).abs().max() < 1e-2)


def _tensor(value: Value) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


def _per_row(value: Value, rows: torch.Tensor) -> torch.Tensor:
    """One number per row in float64, from a scalar, one for all, or one for each."""
    numbers = value if isinstance(value, torch.Tensor) else torch.tensor(value, device=rows.device)
    return numbers.double().reshape(-1).expand(len(rows))
