"""Inputs of workloads: generation, synthesis, distributions, variation, redrawing."""

from __future__ import annotations

from .generation import Value, distributions_of, make_inputs

__all__ = ["Value", "distributions_of", "make_inputs"]
