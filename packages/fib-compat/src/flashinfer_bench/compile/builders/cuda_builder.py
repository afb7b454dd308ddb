"""The first release's builder of CUDA; there are two now, and ``spec.binding`` chooses."""

from __future__ import annotations

from fib_compile.builders import TVMFFIBuilder as CUDABuilder

from ...replaced import explaining

__all__ = ["CUDABuilder"]

__getattr__ = explaining(__name__)
