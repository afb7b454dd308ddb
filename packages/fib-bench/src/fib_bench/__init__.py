"""Benchmarks kernels: isolated workers, outputs compared by a judge, latencies, reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fib_schema.package_init import lazy_exports, require_linux

__all__ = [
    "Benchmark",
    "BenchmarkConfig",
    "EvalConfig",
    "EvaluatorFailed",
    "EvaluatorUnusable",
    "InputError",
    "InvalidConfig",
    "OutputsUndefined",
    "ReferenceFailed",
    "ResolvedEvalConfig",
    "Tolerance",
    "UnsupportedDevice",
    "__version__",
    "evaluate",
    "make_inputs",
]

require_linux("fib-bench")

if TYPE_CHECKING:
    from .api import evaluate
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
            "api": "evaluate",
            "inputs": "make_inputs",
        },
    )
