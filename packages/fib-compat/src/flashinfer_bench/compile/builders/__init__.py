"""The builders that FIB provides."""

from __future__ import annotations

from fib_compile import PythonBuilder, TileLangBuilder, TorchBuilder, TritonBuilder, TVMFFIBuilder

__all__ = ["CUDABuilder", "PythonBuilder", "TVMFFIBuilder", "TileLangBuilder", "TorchBuilder", "TritonBuilder"]

CUDABuilder = TVMFFIBuilder
"""The first release's only builder of CUDA; today there is `TorchBuilder` too, and ``spec.binding`` selects."""
