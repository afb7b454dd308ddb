"""Evaluators. Correctness criteria for the outputs of each kind of op."""

from __future__ import annotations

from ..checking.comparison import OutputCheck
from ..config.model import GROUP, evaluator_names
from .protocol import Case, Check, EachOutput, Evaluator, Observation, Verdict, evaluator_for

__all__ = [
    "GROUP",
    "Case",
    "Check",
    "EachOutput",
    "Evaluator",
    "Observation",
    "OutputCheck",
    "Verdict",
    "evaluator_for",
    "evaluator_names",
]
