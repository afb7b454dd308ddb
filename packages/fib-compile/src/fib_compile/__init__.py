"""Builders that turn the sources of a GPU kernel solution into a callable.

Importing this imports neither torch nor a compiler's package: the names below are imported when they are first used,
and a builder imports what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fib_schema.package_init import lazy_exports, require_linux

__all__ = [
    "BuildError",
    "BuildOutcome",
    "BuildState",
    "Builder",
    "BuilderRegistry",
    "CuTileBuilder",
    "CuteDSLBuilder",
    "HelionBuilder",
    "InvalidDevice",
    "Limits",
    "PythonBuilder",
    "Runnable",
    "RunnableMetadata",
    "TVMFFIBuilder",
    "TileLangBuilder",
    "TorchBuilder",
    "TritonBuilder",
    "__version__",
    "interpreter_environment",
    "jit_environment",
    "reference_solution",
]

require_linux("fib-compile")

if TYPE_CHECKING:
    from .builder import Builder, Limits, interpreter_environment, jit_environment
    from .builders import (
        CuteDSLBuilder,
        CuTileBuilder,
        HelionBuilder,
        PythonBuilder,
        TileLangBuilder,
        TorchBuilder,
        TritonBuilder,
        TVMFFIBuilder,
    )
    from .errors import BuildError, InvalidDevice
    from .registry import BuilderRegistry, BuildOutcome, BuildState, reference_solution
    from .runnable import Runnable, RunnableMetadata

    __version__: str
else:
    __getattr__, __dir__ = lazy_exports(__name__, "fib-compile")
