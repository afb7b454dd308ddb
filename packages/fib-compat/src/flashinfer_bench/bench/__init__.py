"""Benchmarks solutions."""

from __future__ import annotations

from fib_bench import Benchmark, BenchmarkConfig, EvalConfig, ResolvedEvalConfig

from .._models import add_model_methods

__all__ = ["Benchmark", "BenchmarkConfig", "EvalConfig", "ResolvedEvalConfig"]

for _config in (EvalConfig, ResolvedEvalConfig, BenchmarkConfig):
    add_model_methods(_config)
