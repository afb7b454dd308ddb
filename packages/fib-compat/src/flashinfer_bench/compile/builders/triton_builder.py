"""The builder of solutions in Triton."""

from __future__ import annotations

from fib_compile.builders import TritonBuilder

__all__ = ["TritonBuilder"]
