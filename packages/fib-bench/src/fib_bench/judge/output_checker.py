"""Output checker. The evaluator of one workload with the settings and inputs that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import attrs
import torch
from fib_schema import Definition

from ..config.model import ResolvedEvalConfig
from ..evaluators.protocol import Case, Check, Evaluator, Observation, Tensors, Verdict
from ..inputs.generation import Value
from ..transport.slots import CallLayout

T = TypeVar("T")


class EvaluatorRaised(Exception):
    """An evaluator raised; the result is not a verdict on the solution."""


@attrs.frozen(eq=False)
class OutputChecker:
    """Makes the checks of a workload's input sets."""

    evaluator: Evaluator
    definition: Definition
    config: ResolvedEvalConfig
    others: Mapping[str, Value]
    """The inputs that are not tensors; they are the same in all sets."""
    first: Check | None = None
    """The check of the first input set, which later checks may refer to."""

    def check(
        self,
        layout: CallLayout,
        inputs: torch.Tensor,
        expected: torch.Tensor,
        *,
        config: ResolvedEvalConfig | None = None,
        again: Callable[[], torch.Tensor] | None = None,
    ) -> Check:
        """Make the check of an input set.

        Args:
            layout: Where the tensors lie in memory.
            inputs: Memory with inputs.
            expected: Memory with the outputs of the reference.
            config: Settings for inputs of another distribution than the first set.
            again: Calls the reference on the inputs once more.

        Raises:
            EvaluatorRaised: The evaluator did.
        """
        tensors = {name: tensor.contiguous() for name, tensor in layout.input_tensors(inputs).items()}
        case = Case(
            definition=self.definition,
            inputs={name: tensors.get(name, self.others.get(name)) for name in self.definition.inputs},
            expected=layout.output_tensors(expected),
            config=config or self.config,
            again=None if again is None else lambda: layout.output_tensors(again()),
            first=self.first,
            is_like_first=self.first is not None and config is None,
        )
        return _guarded(lambda: self.evaluator.check(case))

    def judge_together(self, observations: Sequence[Observation]) -> Verdict:
        """Judge the outputs of many calls together.

        Raises:
            EvaluatorRaised: The evaluator did.
        """
        return _guarded(lambda: self.evaluator.judge_together(observations))


def verdict_of(check: Check, found: Tensors, expected: Tensors) -> Verdict:
    """Judge one call.

    Raises:
        EvaluatorRaised: The check did.
    """
    return _guarded(lambda: check.compare(found, expected))


def _guarded(judge: Callable[[], T]) -> T:
    """Call evaluator code; convert its exceptions to `EvaluatorRaised`."""
    try:
        return judge()
    except torch.OutOfMemoryError:
        raise  # the workload is too large for this device
    except Exception as error:
        raise EvaluatorRaised(f"{type(error).__name__}: {error}") from error
