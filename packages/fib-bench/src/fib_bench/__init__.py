"""Benchmarks kernels: isolated workers, outputs compared by a judge, latencies, reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fib_schema.package_init import lazy_exports, require_linux

__all__ = [
    "Benchmark",
    "BenchmarkConfig",
    "EvalConfig",
    "Evaluator",
    "EvaluatorFailed",
    "EvaluatorUnusable",
    "InputError",
    "InvalidConfig",
    "IsolationReport",
    "OutputsUndefined",
    "ReferenceFailed",
    "ResolvedEvalConfig",
    "Tolerance",
    "UnsupportedDevice",
    "__version__",
    "evaluate",
    "make_inputs",
    "probe_isolation",
    "remove_build_cache",
]

require_linux("fib-bench")

if TYPE_CHECKING:
    from .api import Evaluator, IsolationReport, evaluate, probe_isolation, remove_build_cache
    from .benchmark import Benchmark
    from .config import BenchmarkConfig, EvalConfig, ResolvedEvalConfig, Tolerance
    from .errors import (
        EvaluatorFailed,
        EvaluatorUnusable,
        InputError,
        InvalidConfig,
        OutputsUndefined,
        ReferenceFailed,
        UnsupportedDevice,
    )
    from .inputs import make_inputs

    __version__: str
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        "fib-bench",
        {
            "benchmark": "Benchmark",
            "config": "BenchmarkConfig EvalConfig ResolvedEvalConfig Tolerance",
            "errors": (
                "EvaluatorFailed EvaluatorUnusable InputError InvalidConfig OutputsUndefined "
                "ReferenceFailed UnsupportedDevice"
            ),
            "api": "Evaluator IsolationReport evaluate probe_isolation remove_build_cache",
            "inputs": "make_inputs",
        },
    )
