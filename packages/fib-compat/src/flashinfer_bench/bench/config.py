"""The settings of a benchmark."""

from __future__ import annotations

from fib_bench import BenchmarkConfig, EvalConfig, ResolvedEvalConfig

__all__ = ["BenchmarkConfig", "EvalConfig", "ResolvedEvalConfig"]
