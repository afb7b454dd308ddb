"""Definitions, solutions, workloads, traces, and the data set of all four."""

from __future__ import annotations

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

from .._models import RECORDS, add_model_methods
from .._older_names import add_older_names

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

for _record in RECORDS:
    add_model_methods(_record)
    add_older_names(_record)
add_older_names(TraceSet)
