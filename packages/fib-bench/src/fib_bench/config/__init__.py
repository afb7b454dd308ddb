"""Settings of a run: the model, their layers in files, validators."""

from __future__ import annotations

from .benchmark import BenchmarkConfig
from .model import DISTRIBUTIONS, EvalConfig, ResolvedEvalConfig, Tolerance

__all__ = ["DISTRIBUTIONS", "BenchmarkConfig", "EvalConfig", "ResolvedEvalConfig", "Tolerance"]
