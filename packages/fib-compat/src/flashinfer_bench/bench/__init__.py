"""Benchmarks of solutions and their settings."""

from __future__ import annotations

from fib_bench import Benchmark, BenchmarkConfig, EvalConfig, ResolvedEvalConfig

from .._model_methods import add_model_methods

__all__ = ["Benchmark", "BenchmarkConfig", "EvalConfig", "ResolvedEvalConfig"]

for _config in (EvalConfig, ResolvedEvalConfig, BenchmarkConfig):
    add_model_methods(_config)
