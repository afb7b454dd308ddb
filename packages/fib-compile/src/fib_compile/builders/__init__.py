"""The builders that come with FIB."""

from __future__ import annotations

from .python import PythonBuilder
from .tilelang import TileLangBuilder
from .torch import TorchBuilder
from .triton import TritonBuilder
from .tvm_ffi import TVMFFIBuilder

__all__ = ["PythonBuilder", "TVMFFIBuilder", "TileLangBuilder", "TorchBuilder", "TritonBuilder", "builder_classes"]


def builder_classes() -> tuple[type[PythonBuilder | TVMFFIBuilder | TorchBuilder], ...]:
    """All builders, highest priority first, available or not."""
    return (TritonBuilder, TileLangBuilder, PythonBuilder, TVMFFIBuilder, TorchBuilder)
