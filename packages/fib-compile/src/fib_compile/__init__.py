"""Builds the sources of a GPU kernel solution into a callable.

Importing this imports neither torch nor a compiler's package; the names below are imported from
their modules when they are first used, and a builder imports what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ahead import BuildOutcome, BuildState
    from .builder import Builder, Limits
    from .builders import PythonBuilder, TileLangBuilder, TorchBuilder, TritonBuilder, TVMFFIBuilder
    from .errors import BuilderConflict, BuildError, InvalidDevice, InvalidLimit, UnknownDType
    from .jit import jit_environment
    from .registry import BuilderRegistry, reference_solution
    from .runnable import Runnable, RunnableMetadata

__all__ = [
    "BuildError",
    "BuildOutcome",
    "BuildState",
    "Builder",
    "BuilderConflict",
    "BuilderRegistry",
    "InvalidDevice",
    "InvalidLimit",
    "Limits",
    "PythonBuilder",
    "Runnable",
    "RunnableMetadata",
    "TVMFFIBuilder",
    "TileLangBuilder",
    "TorchBuilder",
    "TritonBuilder",
    "UnknownDType",
    "jit_environment",
    "reference_solution",
]

__version__ = "0.1.0"

_HOMES = {
    "ahead": ("BuildOutcome", "BuildState"),
    "builder": ("Builder", "Limits"),
    "builders": ("PythonBuilder", "TVMFFIBuilder", "TileLangBuilder", "TorchBuilder", "TritonBuilder"),
    "errors": ("BuildError", "BuilderConflict", "InvalidDevice", "InvalidLimit", "UnknownDType"),
    "jit": ("jit_environment",),
    "registry": ("BuilderRegistry", "reference_solution"),
    "runnable": ("Runnable", "RunnableMetadata"),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
