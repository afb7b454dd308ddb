"""Default evaluator. Compares outputs element by element, within tolerances."""

from __future__ import annotations

from collections.abc import Container

import torch
from fib_schema import Definition

from ..checking.sensitivity import OutputCheck, examine
from .protocol import Case, EachOutput, Evaluator


class Default(Evaluator):
    """Every element of every output must be close to the reference's."""

    name = "default"
    has_one_rule = True

    def applies(self, definition: Definition) -> bool:
        """Every definition."""
        del definition
        return True

    def check(self, case: Case) -> EachOutput:
        """Check each output, with tolerances tight enough to fail known wrong answers."""
        return EachOutput(default_parts(case, case.expected))


def default_parts(case: Case, names: Container[str]) -> dict[str, OutputCheck]:
    """The default checks of the named outputs; input sets drawn like the first reuse its tolerances."""
    tensors = {name: value for name, value in case.inputs.items() if isinstance(value, torch.Tensor)}
    outputs = {name: tensor for name, tensor in case.expected.items() if name in names}
    known = case.first.parts if case.first is not None and case.is_like_first else {}
    return {
        name: known[name].alike(tensor) if name in known else examine(name, tensor, tensors, case.config)
        for name, tensor in outputs.items()
    }
