"""The data set."""

from __future__ import annotations

from fib_schema import TraceSet

__all__ = ["TraceSet"]
