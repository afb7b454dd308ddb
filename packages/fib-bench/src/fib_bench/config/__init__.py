"""Settings of runs and of evaluations: models, layers in files, validators."""

from __future__ import annotations

from .benchmark import BenchmarkConfig
from .model import DISTRIBUTIONS, EvalConfig, ResolvedEvalConfig, Tolerance

__all__ = ["DISTRIBUTIONS", "BenchmarkConfig", "EvalConfig", "ResolvedEvalConfig", "Tolerance"]
