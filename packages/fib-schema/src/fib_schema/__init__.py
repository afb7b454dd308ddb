"""Data model of FIB and its on-disk store. Importing it imports neither torch nor numpy.

Each name below is imported from its module on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .package_init import lazy_exports

__all__ = [
    "UNRANKED_FLAGS",
    "AxisConst",
    "AxisError",
    "AxisSpec",
    "AxisVar",
    "BlobError",
    "BuildSpec",
    "CompileOptions",
    "ConstraintError",
    "Correctness",
    "DType",
    "DataSetNotFound",
    "DataWarning",
    "Definition",
    "DuplicateName",
    "Environment",
    "Evaluation",
    "EvaluationStatus",
    "FibError",
    "InputSpec",
    "InvalidField",
    "InvalidRecord",
    "MigrationReport",
    "NoRoot",
    "Performance",
    "Problem",
    "RandomInput",
    "Report",
    "SafetensorsInput",
    "ScalarInput",
    "Severity",
    "Solution",
    "SourceFile",
    "SpeedupMetrics",
    "SupportedBindings",
    "SupportedLanguages",
    "TargetNotEmpty",
    "TensorSpec",
    "Trace",
    "TraceSet",
    "TraceSetSummary",
    "UnknownName",
    "Workload",
    "WorkloadLog",
    "__version__",
    "append_jsonl_file",
    "constraint_names",
    "evaluate_constraint",
    "format_json",
    "get_fib_cache_path",
    "get_fib_dataset_path",
    "load_json_file",
    "load_jsonl_file",
    "migrate",
    "parse_constraint",
    "parse_json",
    "save_json_file",
    "save_jsonl_file",
    "to_plain",
    "validate",
]

if TYPE_CHECKING:
    from .blobs import BlobError
    from .codec import format_json, parse_json, to_plain
    from .constraints import constraint_names, evaluate_constraint, parse_constraint
    from .data_files import append_jsonl_file, load_json_file, load_jsonl_file, save_json_file, save_jsonl_file
    from .definition import AxisConst, AxisSpec, AxisVar, Definition, DType, TensorSpec
    from .errors import (
        AxisError,
        ConstraintError,
        DataSetNotFound,
        DataWarning,
        DuplicateName,
        FibError,
        InvalidField,
        InvalidRecord,
        NoRoot,
        Problem,
        Severity,
        UnknownName,
    )
    from .files import get_fib_cache_path, get_fib_dataset_path
    from .migration import MigrationReport, TargetNotEmpty, migrate
    from .problems import Report
    from .solution import BuildSpec, CompileOptions, Solution, SourceFile, SupportedBindings, SupportedLanguages
    from .trace import (
        UNRANKED_FLAGS,
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
    from .trace_set import SpeedupMetrics, TraceSet, TraceSetSummary
    from .validation import validate
    from .workload_log import WorkloadLog

    __version__: str
else:
    __getattr__, __dir__ = lazy_exports(__name__, "fib-schema")
