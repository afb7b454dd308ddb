"""The builders of this package."""

from __future__ import annotations

from .native import TorchBuilder, TVMFFIBuilder
from .python import CuteDSLBuilder, CuTileBuilder, HelionBuilder, PythonBuilder, TileLangBuilder, TritonBuilder

__all__ = [
    "CuTileBuilder",
    "CuteDSLBuilder",
    "HelionBuilder",
    "PythonBuilder",
    "TVMFFIBuilder",
    "TileLangBuilder",
    "TorchBuilder",
    "TritonBuilder",
    "builder_classes",
]


def builder_classes() -> tuple[type[PythonBuilder | TVMFFIBuilder | TorchBuilder], ...]:
    """All builders, highest priority first, available or not."""
    embedded = (TritonBuilder, TileLangBuilder, HelionBuilder, CuTileBuilder, CuteDSLBuilder)
    return (*embedded, PythonBuilder, TVMFFIBuilder, TorchBuilder)
