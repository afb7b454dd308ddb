"""Row-scaled checks, and the evaluators of recurrences and sparse attention. Tolerances follow the size of a row.

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
from fib_schema import Definition

from ..checking.comparison import ErrorLimits, limit_of, measure_extent
from ..checking.elements import dtype_name
from ..checking.sensitivity import OutputCheck, examine, with_blind_spots
from ..config.model import DISTRIBUTIONS, ResolvedEvalConfig, Tolerance
from .protocol import Case, EachOutput, Evaluator

_SMALLEST_NORMAL = 2.0**-126
"""Kernels may flush smaller numbers to zero."""
_UNTOUCHED = ResolvedEvalConfig()


@attrs.frozen(eq=False, kw_only=True)
class ScaledPart(OutputCheck):
    """The check of one output, with an absolute tolerance for each row."""

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace: the tolerances of the rows with the smallest and the largest scale."""
        atol = self.rule.atol
        tolerances = {"atol": torch.stack(atol.aminmax()).tolist() if atol.numel() else []}
        return super().to_extra() | tolerances | {"row_share": self.rule.row_share}


def scaled_part(
    name: str, expected: torch.Tensor, config: ResolvedEvalConfig, *, axes: int = 1, share: float | None = None
) -> ScaledPart:
    """Make the check of a floating output that is not packed.

    An `atol` of the settings counts only above the default, which is meant for numbers around 1. The last `axes` axes
    make up a row. The error of an element may be `share` of the largest in its row; None means `rtol`.
    """
    tolerance, extent = config.tolerance(dtype_name(expected)), measure_extent(expected)
    width = math.prod(expected.shape[-axes:])
    least = tolerance.atol if tolerance.atol > _UNTOUCHED.atol else _SMALLEST_NORMAL
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


def _part(name: str, expected: torch.Tensor, case: Case) -> OutputCheck:
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
    rule = attrs.evolve(loose.rule, rtol=min(loose.rule.rtol, torch.finfo(expected.dtype).eps))
    loose = attrs.evolve(loose, rule=rule)
    olds = list(_old_states(name, expected, case))
    if not olds:
        return with_blind_spots(loose, expected, case.inputs)
    part = loose
    for share in _MIN_SHARES:
        part = attrs.evolve(loose, rule=attrs.evolve(rule, atol=_within_change(rule, expected, olds, share)))
        part = with_blind_spots(part, expected, case.inputs)
        if not part.insensitive_to:
            break
    return part


def _old_states(name: str, expected: torch.Tensor, case: Case) -> Iterable[torch.Tensor]:
    """The inputs that might be returned for a new state."""
    for given, value in case.inputs.items():
        is_alike = isinstance(value, torch.Tensor) and value.shape == expected.shape and value.dtype.is_floating_point
        if is_alike and (_STATE.fullmatch(given) or given in name):
            assert isinstance(value, torch.Tensor)
            yield value


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
