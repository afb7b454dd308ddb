"""Evaluator of sparse attention. Outputs by the scale of their rows, and the log-sum-exp.

The magnitude of a row depends on the number of keys that were chosen for it: the mean of two thousand
values is small, and that of one is not. Rows without a valid key must be zeros or minus infinity where
the reference's are; where they are NaN, anything is right.
"""

from __future__ import annotations

import re

import attrs
import torch
from fib_schema import Definition

from ..checking.sensitivity import examine
from ..config.model import Tolerance
from .protocol import Case, EachOutput, Evaluator, Part
from .scaled import scaled_part, with_blind_spots

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
