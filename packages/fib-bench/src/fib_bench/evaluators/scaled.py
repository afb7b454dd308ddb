"""Row-scaled checks, and the evaluators of recurrences and sparse attention. Tolerances follow the size of a row.

One tolerance for all elements does not suit an output of large and small rows: it accepts
anything in the small ones, and no rounding in the large ones. An element may be off by a share of
the largest magnitude of its row, or by `rtol` of itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
import torch
from fib_schema import Definition

from ..checking.comparison import Comparison, Extent, Statistics, comparison_of, errors, limit_of, measure_extent
from ..checking.elements import (
    WHOLE_ROW,
    chunk_size,
    dtype_name,
    element_count,
    flat,
    has_same_bytes,
    is_float4,
    is_on_cpu,
    pack_worst_row,
    to_double,
)
from ..checking.sensitivity import examine
from ..config.model import DISTRIBUTIONS, ResolvedEvalConfig, Tolerance
from ..inputs.generation import Value
from .protocol import Case, EachOutput, Evaluator, Part


@attrs.frozen(eq=False)
class Piece:
    """Some rows of an output in float64, found and expected."""

    rows: slice
    found: torch.Tensor
    """``[rows, width]``"""
    expected: torch.Tensor
    absolute: torch.Tensor
    """Errors: 0 where both are the same or `expected` is NaN, infinite where either alone is NaN or infinite."""
    relative: torch.Tensor
    start: int
    """The index of the first element."""
    is_float: bool


def pieces(found: torch.Tensor, expected: torch.Tensor, width: int, *, may_skip: bool = True) -> Iterator[Piece]:
    """Iterate over the rows of an output in pieces, so that temporaries stay small.

    Args:
        found: What a function gave.
        expected: What it should have, of the same shape and dtype.
        width: The elements in a row; rows lie one behind the other.
        may_skip: Whether to pass over what is the same bit by bit, where that is quickly seen.
    """
    per_item = 2 if is_float4(expected) else 1
    a, b = flat(found), flat(expected)
    step = max(1, chunk_size(expected) // max(width, 1)) * width // per_item
    for start in range(0, b.numel(), max(step, 1)):
        parts = [tensor[start : start + step] for tensor in (a, b)]
        if may_skip and is_on_cpu(b) and has_same_bytes(*parts):
            continue
        a_rows, b_rows = (to_double(part).view(-1, width) for part in parts)
        first = start * per_item // width
        rows = slice(first, first + len(b_rows))
        absolute, relative = errors(a_rows, b_rows)
        is_float = expected.dtype.is_floating_point
        yield Piece(rows, a_rows, b_rows, absolute, relative, start * per_item, is_float)


def statistics_of(
    piece: Piece, wrong: torch.Tensor, limit: float, row_share: float = WHOLE_ROW
) -> tuple[torch.Tensor, torch.Tensor]:
    """The statistics of a piece, packed for `comparison_of`; they stay on the device.

    Args:
        piece: Some rows.
        wrong: ``[rows, width]``, the elements that are wrong.
        limit: The error that no element may have.
        row_share: The largest share of a row's defined elements that may be wrong; one may be in any case.
    """
    defined = (~piece.expected.isnan()).sum(dim=1)
    worst = pack_worst_row(wrong.sum(dim=1), defined, row_share)
    worst[1] += piece.rows.start
    return _elements(piece, wrong, limit), Statistics.pack_rows(worst)


def _elements(piece: Piece, wrong: torch.Tensor, limit: float) -> torch.Tensor:
    absolute, a, b = (tensor.flatten() for tensor in (piece.absolute, piece.found, piece.expected))
    wrong = wrong.flatten()
    worst_error, index = torch.where(wrong, absolute, -1.0).max(0)
    counts = torch.stack([wrong.sum(), (wrong & (absolute > limit)).sum(), index + piece.start])
    values = torch.cat([tensor.index_select(0, index.reshape(1)) for tensor in (a, b)])
    bits = values.view(torch.int64) if piece.is_float else values.to(torch.int64)
    relative = piece.relative.flatten()
    noticed = torch.where(wrong, relative, 0.0).max()
    return Statistics.pack((absolute.max(), noticed, relative.max(), worst_error), counts, bits)


_SMALLEST_NORMAL = 2.0**-126
"""Kernels may flush smaller numbers to zero."""
_UNTOUCHED = ResolvedEvalConfig()


@attrs.frozen(eq=False, kw_only=True)
class ScaledPart:
    """The check of one output, row by row."""

    name: str
    width: int
    """The elements in a row."""
    atol: torch.Tensor
    """``[rows]``, float64"""
    rtol: float
    extent: Extent
    limit: float = math.inf
    """The error that no element may have, however many match."""
    row_share: float = WHOLE_ROW
    """The largest share of a row's elements that may be wrong, however many match in other rows."""
    required_matched_ratio: float | None = None
    insensitive_to: tuple[str, ...] = ()
    """Wrong answers that pass: ``zeros``, ``input NAME``."""
    rejects: tuple[str, ...] = ()
    """Wrong answers that do not."""

    @property
    def undefined_share(self) -> float:
        """The share of expected elements that are NaN; anything passes there."""
        return self.extent.undefined_share

    @property
    def infinite_share(self) -> float:
        """The share of expected elements that are infinite; only the same passes there."""
        return self.extent.infinite_share

    def wrong(self, piece: Piece) -> torch.Tensor:
        """Mask of the wrong elements of some rows."""
        return (piece.absolute > self.atol[piece.rows, None]) & (piece.relative > self.rtol)

    def compare(self, found: torch.Tensor, expected: torch.Tensor) -> Comparison:
        """Compare every element; waits for the device once."""
        rows: list[torch.Tensor] = []
        for piece in pieces(found, expected, self.width):
            rows += statistics_of(piece, self.wrong(piece), self.limit, self.row_share)
        allowed = f"relative error {self.rtol:g} or the absolute error of its row"
        return comparison_of(self.name, rows, expected, self.extent, self.limit, allowed)

    def is_right(self, comparison: Comparison) -> bool:
        """Whether enough elements are right, and no row is wrong."""
        return comparison.is_within(self.required_matched_ratio)

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace: the tolerances of the rows with the smallest and the largest scale."""
        return {
            "atol": torch.stack(self.atol.aminmax()).tolist() if self.atol.numel() else [],
            "rtol": self.rtol,
            "required_matched_ratio": self.required_matched_ratio,
            "row_share": self.row_share,
            "insensitive_to": list(self.insensitive_to),
            "undefined_share": self.undefined_share,
            "infinite_share": self.infinite_share,
        }


def scaled_part(
    name: str,
    expected: torch.Tensor,
    config: ResolvedEvalConfig,
    *,
    axes: int = 1,
    share: float | None = None,
) -> ScaledPart:
    """Make the check of an output.

    Args:
        name: The output's name.
        expected: What the reference gave; floating, and not packed.
        config: The settings: `rtol`, `required_matched_ratio` and `error_cap` as always; an `atol` only if it
            is larger than the default, which is meant for numbers around 1.
        axes: The last axes that make up a row.
        share: What an element may be off by, of the largest in its row; None means `rtol`.
    """
    tolerance, extent = config.tolerance(dtype_name(expected)), measure_extent(expected)
    width = math.prod(expected.shape[-axes:])
    least = tolerance.atol if tolerance.atol > _UNTOUCHED.atol else _SMALLEST_NORMAL
    share = tolerance.rtol if share is None else share
    return ScaledPart(
        name=name,
        width=width,
        atol=(row_scales(expected, width) * share).clamp_(min=least),
        rtol=tolerance.rtol,
        extent=extent,
        limit=limit_of(config.error_cap, extent),
        required_matched_ratio=config.required_matched_ratio,
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


def with_blind_spots(part: ScaledPart, expected: torch.Tensor, inputs: Mapping[str, Value]) -> ScaledPart:
    """Return the check with the result of trying zeros and each input as the output."""
    answers = {"zeros": torch.zeros_like(expected)} if expected.numel() else {}
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and _could_be_returned(value, expected):
            answers[f"input {name}"] = value.reshape(expected.shape).to(expected.dtype)
    verdicts = {}
    for name, answer in answers.items():
        answer = torch.where(expected.isfinite(), answer, expected)
        verdicts[name] = part.is_right(part.compare(answer, expected))
    return attrs.evolve(
        part,
        insensitive_to=tuple(name for name, passes in verdicts.items() if passes),
        rejects=tuple(name for name, passes in verdicts.items() if not passes),
    )


def _could_be_returned(value: torch.Tensor, expected: torch.Tensor) -> bool:
    is_plain = value.dtype.is_floating_point and not is_float4(value)
    return is_plain and element_count(value) == element_count(expected) > 0


_OP_TYPES = re.compile(r"(dsa|nsa|moba)(_|$)|.*sparse.*(att|mla|mha|gqa|mqa)|.*(att|mla|mha|gqa|mqa).*sparse")
_CHOSEN_KEYS = re.compile(r"sparse_(indices|index)|topk_(indices|index|idx)|block_(mask|indices|index)|selected_\w+")
_LSE = re.compile(r".*(lse|logsumexp|log_sum_exp).*", re.IGNORECASE)
_LSE_SHARE = 0.1
"""A logarithm has an absolute error: relative to itself it is allowed a tenth of `rtol` only."""


class SparseAttention(Evaluator):
    """Rows by their own scale, the log-sum-exp by its absolute error."""

    name = "sparse_attention"

    def applies(self, definition: Definition) -> bool:
        """True for ops tagged as sparse, and for attention over selected keys."""
        if not all(spec.shape is not None and "float" in spec.dtype for spec in definition.outputs.values()):
            return False
        is_named = _OP_TYPES.match(definition.op_type) is not None
        is_tagged = any(tag.startswith("sparse:") for tag in definition.tags)
        has_choice = any(_CHOSEN_KEYS.fullmatch(name) for name in definition.inputs)
        is_attention = bool(re.search("att(entio)?n", f"{definition.op_type} {definition.name}"))
        return is_named or is_tagged or (has_choice and is_attention)

    def check(self, case: Case) -> EachOutput:
        """Outputs row by row; logarithms of sums element by element."""
        return EachOutput({name: _part(name, tensor, case) for name, tensor in case.expected.items()})


def _part(name: str, expected: torch.Tensor, case: Case) -> Part:
    if not _LSE.fullmatch(name):
        return with_blind_spots(scaled_part(name, expected, case.config), expected, case.inputs)
    dtype = str(case.definition.outputs[name].dtype)
    given = case.config.tolerance(dtype)
    tolerances = {**case.config.dtypes, dtype: Tolerance(given.atol, given.rtol * _LSE_SHARE)}
    return examine(name, expected, case.inputs, attrs.evolve(case.config, dtypes=tolerances))


_RECURRENT_OP_TYPES = (
    "gdn", "gated_delta", "delta_", "deltanet", "kda", "mamba", "ssm", "ssu", "ssd", "selective_s", "state_space",
    "linear_att", "lightning_att", "gla", "retention", "retnet", "rwkv",
)  # fmt: skip
_STATE = re.compile(r"(?!.*hidden_state).*state.*")
_PART_OF_CHANGE = 0.25
"""Largest error of a state, as a share of the largest change that a step makes to a state."""
_MIN_SHARES = (1e-3, 0.0)
"""Share of the state's scale that is always allowed (products in TF32); 0 if the old state would pass then."""


class StateSpace(Evaluator):
    """Outputs and new states, each by its own scale."""

    name = "state_space"

    def applies(self, definition: Definition) -> bool:
        """True for recurrences by op_type, and for ops that take a state and return one."""
        if not all("float" in spec.dtype and spec.shape for spec in definition.outputs.values()):
            return False
        takes, gives = (any(map(_STATE.fullmatch, names)) for names in (definition.inputs, definition.outputs))
        return definition.op_type.startswith(_RECURRENT_OP_TYPES) or (takes and gives)

    def settings(self, config: ResolvedEvalConfig) -> ResolvedEvalConfig:
        """No inputs with which recurrences overflow."""
        return typical_inputs(config)

    def check(self, case: Case) -> EachOutput:
        """A check of every output."""
        parts = {}
        for name, expected in case.expected.items():
            if _STATE.fullmatch(name):
                parts[name] = _state_part(name, expected, case)
            else:
                parts[name] = with_blind_spots(scaled_part(name, expected, case.config), expected, case.inputs)
        return EachOutput(parts)


def _state_part(name: str, expected: torch.Tensor, case: Case) -> ScaledPart:
    """The check of new states: as tight as it takes to fail the old ones."""
    loose = scaled_part(name, expected, case.config, axes=min(2, expected.dim()))
    loose = attrs.evolve(loose, rtol=min(loose.rtol, torch.finfo(expected.dtype).eps))
    olds = list(_old_states(name, expected, case))
    if not olds:
        return with_blind_spots(loose, expected, case.inputs)
    part = loose
    for share in _MIN_SHARES:
        part = attrs.evolve(loose, atol=_within_change(loose, expected, olds, share))
        part = with_blind_spots(part, expected, case.inputs)
        if not part.insensitive_to:
            break
    return part


def _old_states(name: str, expected: torch.Tensor, case: Case) -> Iterable[torch.Tensor]:
    """The inputs that might be returned for a new state."""
    for given, value in case.inputs.items():
        if _is_alike(value, expected) and (_STATE.fullmatch(given) or given in name):
            assert isinstance(value, torch.Tensor)
            yield value


def _is_alike(value: Value, expected: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == expected.shape and value.dtype.is_floating_point


def _within_change(
    loose: ScaledPart, expected: torch.Tensor, olds: Iterable[torch.Tensor], least_share: float
) -> torch.Tensor:
    """The tolerance of each state: none where the step changes nothing."""
    atol = loose.atol
    for old in olds:
        change = row_scales(expected.float() - old.float(), loose.width)
        least = row_scales(expected, loose.width) * least_share
        within = torch.maximum(change * _PART_OF_CHANGE, least)
        atol = torch.minimum(atol, torch.where(change > 0, within, 0.0))
    return atol
