"""Workloads, evaluations, and traces of both."""

from __future__ import annotations

from typing import TypeAlias

from fib_schema import (
    Correctness,
    Environment,
    Evaluation,
    EvaluationStatus,
    InputSpec,
    Performance,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    Trace,
    Workload,
)

__all__ = [
    "Correctness",
    "Environment",
    "Evaluation",
    "EvaluationStatus",
    "InputDesc",
    "InputSpec",
    "Performance",
    "RandomInput",
    "SafetensorsInput",
    "ScalarInput",
    "ScalarValue",
    "Trace",
    "Workload",
]

InputDesc = InputSpec
ScalarValue: TypeAlias = int | float | bool
