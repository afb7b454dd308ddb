"""By what the outputs of one workload are judged: an evaluator, with all that it wants to know."""

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
    """An evaluator raised instead of judging; whoever is judged is not to blame."""


@attrs.frozen(eq=False)
class Standard:
    """What makes the checks of a workload's input sets."""

    evaluator: Evaluator
    definition: Definition
    config: ResolvedEvalConfig
    others: Mapping[str, Value]
    """The inputs that are no tensors, which are the same in all sets."""
    first: Check | None = None
    """The check of the first input set, for those that come after it."""

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
            expected: Memory with what the reference gave for them.
            config: The settings of inputs that are not drawn like those of the first set.
            again: Calls the reference on the inputs once more.

        Raises:
            EvaluatorRaised: The evaluator did.
        """
        tensors = layout.input_tensors(inputs)
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
        """Judge many calls.

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
    """The border to code that may be somebody else's: what it raises says nothing about a solution."""
    try:
        return judge()
    except torch.OutOfMemoryError:
        raise  # the workload is too large, whoever looks at it
    except Exception as error:
        raise EvaluatorRaised(f"{type(error).__name__}: {error}") from error
