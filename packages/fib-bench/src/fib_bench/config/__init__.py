"""Settings of runs and of evaluations: models, layers in files, validators."""

from __future__ import annotations

from .model import DISTRIBUTIONS, BenchmarkConfig, EvalConfig, ResolvedEvalConfig, Tolerance

__all__ = ["DISTRIBUTIONS", "BenchmarkConfig", "EvalConfig", "ResolvedEvalConfig", "Tolerance"]
