"""The documented names of ``flashinfer_bench``, which are the same objects as those of the FIB packages.

Importing this package imports no torch: names that need it are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fib_schema.package_init import lazy_exports

from ._installation import warn_of_conflict
from ._module_table import install_finder

# Not on first use: `flashinfer_bench.apply` is a module too, and importing it later would replace the function.
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

_SUBMODULES = frozenset({"bench", "cli", "compile", "env", "integration", "tracer", "tracing", "utils"})
"""Modules that a program may use after ``import flashinfer_bench`` alone."""

install_finder()
warn_of_conflict()

if TYPE_CHECKING:
    from .bench import Benchmark, BenchmarkConfig
    from .tracing import TracingConfig, TracingConfigRegistry, disable_tracing, enable_tracing

    __version__: str
else:
    _load_name, _list_names = lazy_exports(
        __name__,
        "fib-compat",
        {
            "bench": "Benchmark BenchmarkConfig",
            "tracing": "TracingConfig TracingConfigRegistry disable_tracing enable_tracing",
        },
    )

    def __getattr__(name: str) -> Any:
        return import_module(f".{name}", __name__) if name in _SUBMODULES else _load_name(name)

    def __dir__() -> list[str]:
        return sorted({*_list_names(), *_SUBMODULES})
