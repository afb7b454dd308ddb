"""Errors of routing; each is a `fib_schema.FibError`."""

from __future__ import annotations

import attrs
from fib_schema import FibError


@attrs.frozen
class InvalidSetting(FibError, ValueError):
    """A setting has an invalid value."""

    name: str
    value: object
    wanted: str

    def __str__(self) -> str:
        return f"{self.name}: got {self.value!r}, expected {self.wanted}"


@attrs.frozen
class NoKernel(FibError, LookupError):
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
