"""Evaluator of state-space and gated-delta ops. Outputs by the scale of their rows, states by that of a state.

A state is a matrix per sequence and head, and its elements are sums over all earlier steps: the error of
an element scales with the largest one beside it. But a step may change a state by little, and returning
the old one costs nothing: so a state may be off by no more than a part of what the step changed.
States that the step leaves alone must be left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import attrs
import torch
from fib_schema import Definition

from ..config.model import ResolvedEvalConfig
from ..inputs.generation import Value
from .protocol import Case, EachOutput, Evaluator
from .scaled import ScaledPart, row_scales, scaled_part, typical_inputs, with_blind_spots

_OP_TYPES = (
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
        return definition.op_type.startswith(_OP_TYPES) or (takes and gives)

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
