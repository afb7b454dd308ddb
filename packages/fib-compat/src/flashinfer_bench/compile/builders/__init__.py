"""The builders that come with FIB."""

from __future__ import annotations

from fib_compile.builders import PythonBuilder, TileLangBuilder, TorchBuilder, TritonBuilder, TVMFFIBuilder

from .cuda_builder import CUDABuilder

__all__ = ["CUDABuilder", "PythonBuilder", "TVMFFIBuilder", "TileLangBuilder", "TorchBuilder", "TritonBuilder"]
