"""Definitions and what they are made of."""

from __future__ import annotations

from fib_schema import AxisConst, AxisSpec, AxisVar, Definition, DType, TensorSpec

from ..replaced import explaining

__all__ = ["ALLOWED_DTYPES", "AxisConst", "AxisSpec", "AxisVar", "DType", "Definition", "TensorSpec"]

ALLOWED_DTYPES = frozenset(DType)

__getattr__ = explaining(__name__)
