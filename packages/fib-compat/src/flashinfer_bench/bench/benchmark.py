"""The benchmark."""

from __future__ import annotations

from fib_bench import Benchmark

__all__ = ["Benchmark"]
