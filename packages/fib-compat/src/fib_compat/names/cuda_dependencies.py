"""Tables of the first release's CUDA builder. fib-compile finds headers and libraries by `BuildSpec.dependencies`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["CUDA_ALLOWED_EXTS", "CUDA_DEPS", "CUDA_DEPS_INCLUDE_PATTERNS"]

CUDA_ALLOWED_EXTS = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp")
"""Suffixes of source files and headers."""
CUDA_DEPS: Mapping[str, tuple[str, ...]] = MappingProxyType({"cublas": ("cublas",), "cudnn": ("cudnn",), "cutlass": ()})
"""Linked libraries by name of the dependency."""
CUDA_DEPS_INCLUDE_PATTERNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"cublas": ("cublas_v2.h", "cublas.h"), "cudnn": ("cudnn.h",), "cutlass": ("cutlass/", "cute/")}
)
"""Prefixes of headers by name of the dependency that brings them."""
