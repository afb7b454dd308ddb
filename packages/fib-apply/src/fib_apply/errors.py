"""Errors of routing; each is a `fib_schema.FibError`."""

from __future__ import annotations

import attrs
from fib_schema import FibError
from fib_schema.settings import ConfigProblem, InvalidConfigFile, InvalidSetting

__all__ = ["CannotExport", "CannotRoute", "ConfigProblem", "InvalidConfigFile", "InvalidSetting", "NoKernel"]


@attrs.frozen
class NoKernel(FibError, LookupError, RuntimeError):
    """A call is served by no solution and has no fallback."""

    definition: str
    reason: str

    def __str__(self) -> str:
        return f"no solution serves this call of {self.definition!r}: {self.reason}; pass a fallback"


@attrs.frozen
class CannotRoute(FibError, TypeError):
    """A function's parameters do not match a definition's inputs and outputs."""

    definition: str
    problem: str

    def __str__(self) -> str:
        return f"calls of {self.definition!r} cannot be routed: {self.problem}"


@attrs.frozen
class CannotExport(FibError):
    """A data set has nothing to export, or the export would not serve the same calls."""

    data_set: str
    problem: str

    def __str__(self) -> str:
        return f"{self.data_set}: {self.problem}"


_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "not enough memory")
"""In messages of torch's allocators; that of the CPU raises a RuntimeError."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, which says nothing about the code that asked for it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _MEMORY_TEXTS)
