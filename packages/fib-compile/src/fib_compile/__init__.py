"""Builds the sources of a GPU kernel solution into a callable.

Importing this imports neither torch nor a compiler's package; a builder imports what it needs.
"""

from .builder import Builder, Limits
from .builders import PythonBuilder, TileLangBuilder, TorchBuilder, TritonBuilder, TVMFFIBuilder
from .errors import BuilderConflict, BuildError, InvalidDevice, UnknownDType
from .jit import jit_environment
from .registry import BuilderRegistry, reference_solution
from .runnable import Runnable, RunnableMetadata

__all__ = [
    "BuildError",
    "Builder",
    "BuilderConflict",
    "BuilderRegistry",
    "InvalidDevice",
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
