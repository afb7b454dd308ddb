"""Tables of the first release's CUDA builder. fib-compile finds headers and libraries by `BuildSpec.dependencies`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["CUDA_ALLOWED_EXTS", "CUDA_DEPS", "CUDA_DEPS_INCLUDE_PATTERNS"]

CUDA_ALLOWED_EXTS = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp")
"""Suffixes of source files and headers."""
CUDA_DEPS: Mapping[str, tuple[str, ...]] = MappingProxyType({"cublas": ("cublas",), "cudnn": ("cudnn",), "cutlass": ()})
"""By name of a dependency: the libraries that are linked."""
CUDA_DEPS_INCLUDE_PATTERNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"cublas": ("cublas_v2.h", "cublas.h"), "cudnn": ("cudnn.h",), "cutlass": ("cutlass/", "cute/")}
)
"""By name of a dependency: the beginnings of the headers that it brings."""
