"""Evaluators by the old package's names: which of them applies to a definition.

fib-bench's own evaluators check outputs in the judge process (`fib_bench.evaluators`). The classes here say which one
that is; `fib_bench.evaluate` evaluates a solution.
"""

from __future__ import annotations

from typing import ClassVar

from fib_bench import ResolvedEvalConfig
from fib_bench.evaluators.registry import evaluator_for
from fib_schema import Definition

__all__ = [
    "DefaultEvaluator",
    "DsaSparseAttentionEvaluator",
    "DsaTopkIndexerEvaluator",
    "Evaluator",
    "LowBitEvaluator",
    "SamplingEvaluator",
    "resolve_evaluator",
]


class Evaluator:
    """Base of the evaluators."""

    evaluators: ClassVar[tuple[str, ...]] = ()
    """The classes of `fib_bench.evaluators` that it stands for."""

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
