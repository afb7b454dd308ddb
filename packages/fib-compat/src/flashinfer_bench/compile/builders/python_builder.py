"""The builder of solutions in Python."""

from __future__ import annotations

from fib_compile.builders import PythonBuilder

__all__ = ["PythonBuilder"]
