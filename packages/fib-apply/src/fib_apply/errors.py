"""What can go wrong in routing; all of it is a `fib_schema.FibError`."""

from __future__ import annotations

import attrs
from fib_schema import FibError


@attrs.frozen
class InvalidSetting(FibError, ValueError):
    """A setting has a value that it cannot have."""

    name: str
    value: object
    wanted: str

    def __str__(self) -> str:
        return f"{self.name}: got {self.value!r}, expected {self.wanted}"


@attrs.frozen
class NoKernel(FibError, LookupError):
    """A call has neither a verified kernel nor a fallback."""

    definition: str
    reason: str

    def __str__(self) -> str:
        return f"no kernel serves this call of {self.definition!r} ({self.reason}), and it has no fallback; pass one"


@attrs.frozen
class CannotRoute(FibError, TypeError):
    """A function's parameters cannot be matched with a definition's inputs and outputs."""

    definition: str
    problem: str

    def __str__(self) -> str:
        return f"calls of {self.definition!r} cannot be routed: {self.problem}"
