"""Benchmarks kernels: isolated workers, outputs compared by a judge, latencies, reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

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

_HOMES = {
    "Benchmark": "benchmark",
    "BenchmarkConfig": "config",
    "EvalConfig": "config",
    "EvaluatorFailed": "errors",
    "EvaluatorUnusable": "errors",
    "InputError": "errors",
    "InvalidConfig": "errors",
    "OutputsUndefined": "errors",
    "ReferenceFailed": "errors",
    "ResolvedEvalConfig": "config",
    "Tolerance": "config",
    "UnsupportedDevice": "errors",
    "evaluate": "api",
    "make_inputs": "inputs",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: most of it needs torch, which takes seconds."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
