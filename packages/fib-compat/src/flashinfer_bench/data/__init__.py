"""Definitions, solutions, workloads, traces, and the data set that holds them."""

from __future__ import annotations

from typing import TypeAlias

from fib_schema import (
    AxisConst,
    AxisSpec,
    AxisVar,
    BuildSpec,
    Correctness,
    Definition,
    DType,
    Environment,
    Evaluation,
    EvaluationStatus,
    InputSpec,
    Performance,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    Solution,
    SourceFile,
    SpeedupMetrics,
    SupportedBindings,
    SupportedLanguages,
    TensorSpec,
    Trace,
    TraceSet,
    TraceSetSummary,
    Workload,
    append_jsonl_file,
    load_json_file,
    load_jsonl_file,
    save_json_file,
    save_jsonl_file,
)

from .._legacy_members import add_legacy_members
from .._model_methods import RECORDS, add_model_methods

__all__ = [
    "AxisConst",
    "AxisSpec",
    "AxisVar",
    "BuildSpec",
    "Correctness",
    "DType",
    "Definition",
    "Environment",
    "Evaluation",
    "EvaluationStatus",
    "InputSpec",
    "Performance",
    "RandomInput",
    "SafetensorsInput",
    "ScalarInput",
    "Solution",
    "SourceFile",
    "SpeedupMetrics",
    "SupportedBindings",
    "SupportedLanguages",
    "TensorSpec",
    "Trace",
    "TraceSet",
    "TraceSetSummary",
    "Workload",
    "append_jsonl_file",
    "load_json_file",
    "load_jsonl_file",
    "save_json_file",
    "save_jsonl_file",
]

# Names of the first release only.
ALLOWED_DTYPES = frozenset(DType)
InputDesc = InputSpec
ScalarValue: TypeAlias = int | float | bool

for _record in RECORDS:
    add_model_methods(_record)
    add_legacy_members(_record)
add_legacy_members(TraceSet)
