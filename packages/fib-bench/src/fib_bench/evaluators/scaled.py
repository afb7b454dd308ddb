"""Row-scaled checks, and the evaluators of recurrences, sparse attention and mixtures of experts.

One tolerance for all elements does not suit an output of large and small rows: it accepts
anything in the small ones, and no rounding in the large ones. An element may be off by a share of
the largest magnitude of its row, or by `rtol` of itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import attrs
import torch

from ..checking.comparison import (
    ErrorLimits,
    OutputCheck,
    Piece,
    dtype_name,
    examine,
    limit_of,
    measure_extent,
    with_blind_spots,
)
from ..config.model import DISTRIBUTIONS, ResolvedEvalConfig, Tolerance
from .protocol import STATE, BuiltIn, Case, EachOutput, default_parts

_SMALLEST_NORMAL = 2.0**-126
"""Kernels may flush smaller numbers to zero."""


@attrs.frozen(eq=False, kw_only=True)
class ScaledPart(OutputCheck):
    """The check of one output, with an absolute tolerance for each row."""

    ties: Ties | None = None
    """Rows that need only be similar, because rounding decides about the experts of their tokens."""

    def wrong(self, piece: Piece) -> torch.Tensor:
        """The elements of some rows that are wrong: all of a row with a tie that is not similar, or none."""
        wrong = super().wrong(piece)
        if self.ties is None:
            return wrong
        is_similar = self.ties.are_similar(piece, self.rule.width)
        return torch.where(self.ties.tied[piece.rows, None], ~is_similar[:, None], wrong)

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace: the tolerances of the rows with the smallest and the largest scale."""
        atol = self.rule.atol
        tolerances = {"atol": torch.stack(atol.aminmax()).tolist() if atol.numel() else []}
        ties = {} if self.ties is None else {"rows_with_ties": int(self.ties.tied.sum())}
        return super().to_extra() | tolerances | {"row_share": self.rule.row_share} | ties


def scaled_part(
    name: str, expected: torch.Tensor, config: ResolvedEvalConfig, *, axes: int = 1, share: float | None = None
) -> ScaledPart:
    """Make the check of a floating output that is not packed.

    An `atol` of the settings counts only above the default, which is meant for numbers around 1. The last `axes` axes
    make up a row. The error of an element may be `share` of the largest in its row; None means `rtol`.
    """
    tolerance, extent = config.tolerance(dtype_name(expected)), measure_extent(expected)
    width = math.prod(expected.shape[-axes:])
    least = tolerance.atol if tolerance.atol > ResolvedEvalConfig().atol else _SMALLEST_NORMAL
    share = tolerance.rtol if share is None else share
    atol = (row_scales(expected, width) * share).clamp_(min=least)
    return ScaledPart(
        name=name,
        rule=ErrorLimits(width, atol, tolerance.rtol, limit_of(config.error_cap, extent)),
        extent=extent,
        required_matched_ratio=config.required_matched_ratio,
        error_cap=config.error_cap,
    )


def typical_inputs(config: ResolvedEvalConfig) -> ResolvedEvalConfig:
    """The settings without distributions in which everything is tiny, huge or equal, unless they ask for them."""
    return attrs.evolve(config, distributions=("normal",)) if config.distributions == DISTRIBUTIONS else config


def row_scales(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """The largest finite magnitude of each row, in float64."""
    if not tensor.numel():
        return torch.zeros(0, dtype=torch.float64, device=tensor.device)
    rows = tensor.reshape(-1, width)
    low, high = rows.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).aminmax(dim=1)
    return torch.maximum(low.double().abs(), high.double().abs())


_LSE = re.compile(r".*(lse|logsumexp|log_sum_exp).*", re.IGNORECASE)
_LSE_SHARE = 0.1
"""A logarithm has an absolute error: relative to itself it is allowed a tenth of `rtol` only."""


class ByRows(BuiltIn):
    """Outputs by the scale of their rows, logarithms of sums by their absolute error, states by their change."""

    def check(self, case: Case) -> EachOutput:
        """A check of every output."""
        return EachOutput({name: _part(name, tensor, case) for name, tensor in case.expected.items()})


class SparseAttention(ByRows):
    """Attention over chosen keys."""

    name = "sparse_attention"


def _part(name: str, expected: torch.Tensor, case: Case) -> OutputCheck:
    if STATE.fullmatch(name):
        return _state_part(name, expected, case)
    if not _LSE.fullmatch(name):
        return with_blind_spots(scaled_part(name, expected, case.config), expected, case.inputs)
    dtype = str(case.definition.outputs[name].dtype)
    given = case.config.tolerance(dtype)
    tolerances = {**case.config.dtypes, dtype: Tolerance(given.atol, given.rtol * _LSE_SHARE)}
    return examine(name, expected, case.inputs, attrs.evolve(case.config, dtypes=tolerances))


_PART_OF_CHANGE = 0.25
"""Largest error of a state, as a share of the largest change that a step makes to a state."""
_MIN_SHARES = (1e-3, 0.0)
"""Share of the state's scale that is always allowed (products in TF32); 0 if the old state would pass then."""


class StateSpace(ByRows):
    """Recurrences, and what else takes a state and returns one."""

    name = "state_space"

    def settings(self, config: ResolvedEvalConfig) -> ResolvedEvalConfig:
        """No inputs with which recurrences overflow."""
        return typical_inputs(config)


def _state_part(name: str, expected: torch.Tensor, case: Case) -> ScaledPart:
    """The check of new states: as tight as it takes to fail the old ones."""
    loose = scaled_part(name, expected, case.config, axes=min(2, expected.dim()))
    rule = attrs.evolve(loose.rule, rtol=min(loose.rule.rtol, torch.finfo(expected.dtype).eps))
    loose = attrs.evolve(loose, rule=rule)
    olds = _old_states(name, expected, case)
    if not olds:
        return with_blind_spots(loose, expected, case.inputs)
    part = loose
    for share in _MIN_SHARES:
        part = attrs.evolve(loose, rule=attrs.evolve(rule, atol=_within_change(rule, expected, olds, share)))
        part = with_blind_spots(part, expected, case.inputs)
        if not part.insensitive_to:
            break
    return part


def _old_states(name: str, expected: torch.Tensor, case: Case) -> list[torch.Tensor]:
    """The inputs that might be returned for a new state."""
    return [
        value
        for given, value in case.inputs.items()
        if isinstance(value, torch.Tensor)
        and (value.shape == expected.shape and value.dtype.is_floating_point)
        and (STATE.fullmatch(given) or given in name)
    ]


def _within_change(
    rule: ErrorLimits, expected: torch.Tensor, olds: Iterable[torch.Tensor], least_share: float
) -> torch.Tensor:
    """The tolerance of each state: none where the step changes nothing."""
    atol: torch.Tensor = rule.atol
    for old in olds:
        change = row_scales(expected.float() - old.float(), rule.width)
        least = row_scales(expected, rule.width) * least_share
        within = torch.maximum(change * _PART_OF_CHANGE, least)
        atol = torch.minimum(atol, torch.where(change > 0, within, 0.0))
    return atol


# Matrices are compared row by row, one row per token. Activations that are rounded between the two products make some
# elements wrong, so a share of them may be; but they are spread over all rows, and a token that is wrong (a dropped
# expert, a stale row) is wrong in a large part of its row. So the share is limited in each row as well, and no row is
# exempt. Rows whose experts are chosen by a tie must be similar to the reference's.

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

    def are_similar(self, piece: Piece, width: int) -> torch.Tensor:
        """``[rows]``: whether a row has about the norm and the direction of the reference's."""
        is_undefined = piece.expected.isnan()
        found, expected = (rows.masked_fill(is_undefined, 0.0) for rows in (piece.found, piece.expected))
        sizes = found.norm(dim=1), expected.norm(dim=1)
        is_alike = (sizes[0] <= sizes[1] * _TIED_SIZE) & (sizes[1] <= sizes[0] * _TIED_SIZE)
        least = _TIED_COSINE * self.certain_share[piece.rows] - _COSINE_SIGMAS * width**-0.5
        is_similar: torch.Tensor = is_alike & ((found * expected).sum(dim=1) >= least * sizes[0] * sizes[1])
        return is_similar


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


MATCHED_RATIO = 0.95
ROW_SHARE = 0.1
"""The largest share of a token's elements that may be wrong, and one element in any case.

Measured on 128 tokens with 4 of 16 experts in fp8: rounding activations in blocks of 128 leaves at most
2.1 % of a row wrong; leaving out the least of the four experts at least 26 %, 78 % on average.
"""
_ROUNDED_SHARE = 0.02
"""Error of activations rounded to eight bits between the two products, as a share of the row's largest element.

Measured: rounding them in blocks of 128 leaves one element in 250 off by more; leaving out the
least of eight experts, two of three.
"""
_TIED_SIZE = 4.0
"""The largest ratio of norms of a row whose experts are chosen by a tie."""
_TIED_COSINE = 0.5
"""The smallest cosine of such a row with the reference's, where all experts but the tied ones are the same.

Outputs of different experts are nearly orthogonal, and tied experts have the smallest weights, so the
cosine is at least the share of the experts that are certain; half of it is asked for.
"""
_COSINE_SIGMAS = 6.0
"""The cosine of random rows of `width` elements has the standard deviation ``width ** -0.5``."""


class MixtureOfExperts(BuiltIn):
    """A share of the elements by the scale of their rows, in total and in each row, and an error cap."""

    name = "moe"

    def settings(self, config: ResolvedEvalConfig) -> ResolvedEvalConfig:
        """A matched ratio of 0.95, and no inputs that are ties throughout."""
        if config.required_matched_ratio is None:
            config = attrs.evolve(config, required_matched_ratio=MATCHED_RATIO)
        return typical_inputs(config)

    def check(self, case: Case) -> EachOutput:
        """Check floating matrices by rows, everything else by the default rule."""
        rows = {n for n, t in case.expected.items() if t.dtype.is_floating_point and t.dim() > 1}
        parts = default_parts(case, case.expected.keys() - rows)
        return EachOutput({n: parts[n] if n in parts else _rows_part(n, case) for n in case.expected})


def _rows_part(name: str, case: Case) -> OutputCheck:
    expected = case.expected[name]
    part = scaled_part(name, expected, case.config, share=_share(case))
    ties = find_ties(case)
    is_known = ties is not None and len(ties.tied) == len(part.rule.atol)
    part = attrs.evolve(part, rule=attrs.evolve(part.rule, row_share=ROW_SHARE), ties=ties if is_known else None)
    return with_blind_spots(part, expected, case.inputs)


def _share(case: Case) -> float | None:
    is_quantised = any(tag.startswith("quantization:") for tag in case.definition.tags) or any(
        spec.dtype.startswith(("float8", "float4", "int8")) for spec in case.definition.inputs.values()
    )
    return _ROUNDED_SHARE if is_quantised and case.config.rtol == ResolvedEvalConfig().rtol else None
