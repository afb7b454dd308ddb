"""Evaluators by the old package's names: which of them applies to a definition.

fib-bench's own evaluators check outputs in the judge process (`fib_bench.evaluators`). The classes here say which one
that is; `fib_bench.evaluate` evaluates a solution.
"""

from __future__ import annotations

from typing import Any, ClassVar

from fib_bench import ResolvedEvalConfig
from fib_bench.evaluators.registry import evaluator_for
from fib_schema import Definition

from ..errors import NotOfferedAttribute
from ..replaced import REPLACED

__all__ = [
    "DefaultEvaluator",
    "DsaSparseAttentionEvaluator",
    "DsaTopkIndexerEvaluator",
    "Evaluator",
    "LowBitEvaluator",
    "SamplingEvaluator",
    "resolve_evaluator",
]


class _NotOffered:
    """A class method that is documented by name only; a subclass may define it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"{owner.__name__}.{name}"

    def __get__(self, instance: object, owner: type) -> Any:
        documented = f"flashinfer_bench.bench.evaluators.{self._name}"
        raise NotOfferedAttribute(documented, REPLACED["flashinfer_bench.bench.evaluators"][self._name])


class Evaluator:
    """Base of the evaluators."""

    evaluators: ClassVar[tuple[str, ...]] = ()
    """The classes of `fib_bench.evaluators` that it stands for."""
    build_baseline = _NotOffered()
    check_correctness = _NotOffered()
    eval_performance = _NotOffered()
    evaluate = _NotOffered()

    @classmethod
    def can_evaluate(cls, definition: Definition) -> bool:
        """Whether this evaluator is the one for a definition."""
        return type(evaluator_for(definition, ResolvedEvalConfig())).__name__ in cls.evaluators


class SamplingEvaluator(Evaluator):
    """Compares distributions of samples."""

    evaluators = ("Sampling",)


class DsaTopkIndexerEvaluator(Evaluator):
    """Compares sets of selected indices."""

    evaluators = ("TopK",)


class LowBitEvaluator(Evaluator):
    """Compares results of low-precision inputs by the share of elements that match."""

    evaluators = ("LowPrecision", "MixtureOfExperts")


class DsaSparseAttentionEvaluator(Evaluator):
    """Compares sparse attention."""

    evaluators = ("SparseAttention",)


class DefaultEvaluator(Evaluator):
    """Compares elements; it evaluates whatever no other one does."""

    @classmethod
    def can_evaluate(cls, definition: Definition) -> bool:
        """Whether no other evaluator applies to a definition."""
        return not any(other.can_evaluate(definition) for other in _SPECIAL)


_SPECIAL = (SamplingEvaluator, DsaTopkIndexerEvaluator, LowBitEvaluator, DsaSparseAttentionEvaluator)


def resolve_evaluator(definition: Definition) -> type[Evaluator]:
    """The evaluator of a definition."""
    return next((special for special in _SPECIAL if special.can_evaluate(definition)), DefaultEvaluator)
