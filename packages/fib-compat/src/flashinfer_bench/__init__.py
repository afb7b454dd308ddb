"""The documented names of ``flashinfer_bench`` over the FIB packages: the same objects.

Importing this imports no torch; what needs it is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fib_schema.package_init import installed_version

from ._installation import warn_of_conflict

# Not when first asked for: `flashinfer_bench.apply` is a module too, and must be the function once both are there.
from .apply import ApplyConfig, ApplyConfigRegistry, apply, disable_apply, enable_apply
from .data import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    RandomInput,
    SafetensorsInput,
    Solution,
    SourceFile,
    SupportedLanguages,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)

if TYPE_CHECKING:
    from .bench import Benchmark, BenchmarkConfig
    from .tracing import TracingConfig, TracingConfigRegistry, disable_tracing, enable_tracing

    __version__: str

__all__ = [
    "ApplyConfig",
    "ApplyConfigRegistry",
    "AxisConst",
    "AxisVar",
    "Benchmark",
    "BenchmarkConfig",
    "BuildSpec",
    "Correctness",
    "Definition",
    "Environment",
    "Evaluation",
    "EvaluationStatus",
    "Performance",
    "RandomInput",
    "SafetensorsInput",
    "Solution",
    "SourceFile",
    "SupportedLanguages",
    "TensorSpec",
    "Trace",
    "TraceSet",
    "TracingConfig",
    "TracingConfigRegistry",
    "Workload",
    "__version__",
    "apply",
    "disable_apply",
    "disable_tracing",
    "enable_apply",
    "enable_tracing",
]

_HOMES = {
    "Benchmark": "bench",
    "BenchmarkConfig": "bench",
    "TracingConfig": "tracing",
    "TracingConfigRegistry": "tracing",
    "disable_tracing": "tracing",
    "enable_tracing": "tracing",
}
_MODULES = frozenset({"bench", "cli", "compile", "env", "integration", "tracer", "tracing", "utils"})
"""What a program may use after ``import flashinfer_bench`` alone."""

warn_of_conflict()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name == "__version__":
        return installed_version("fib-compat")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
