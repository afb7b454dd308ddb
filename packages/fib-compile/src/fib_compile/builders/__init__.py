"""The builders of this package."""

from __future__ import annotations

from .python import PythonBuilder, TileLangBuilder, TritonBuilder
from .torch import TorchBuilder
from .tvm_ffi import TVMFFIBuilder

__all__ = ["PythonBuilder", "TVMFFIBuilder", "TileLangBuilder", "TorchBuilder", "TritonBuilder", "builder_classes"]


def builder_classes() -> tuple[type[PythonBuilder | TVMFFIBuilder | TorchBuilder], ...]:
    """All builders, highest priority first, available or not."""
    return (TritonBuilder, TileLangBuilder, PythonBuilder, TVMFFIBuilder, TorchBuilder)
