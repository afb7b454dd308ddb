"""Errors of this package; all are `fib_schema.FibError`."""

from __future__ import annotations

import attrs
from fib_schema import FibError


@attrs.frozen
class CannotAdapt(FibError, TypeError):
    """A target differs from what its adapter was written for."""

    target: str
    problem: str

    def __str__(self) -> str:
        return f"{self.target} cannot be adapted: {self.problem}"


@attrs.frozen
class UnknownAdapter(FibError, LookupError):
    """No adapter has the requested name."""

    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"no adapter {self.name!r} (available: {', '.join(self.known)})"


@attrs.frozen
class DuplicateAdapter(FibError, ValueError):
    """Two adapters have the same name."""

    name: str
    places: tuple[str, ...]

    def __str__(self) -> str:
        return f"adapter name {self.name!r} is used twice: in {' and in '.join(self.places)}; rename one"


@attrs.frozen
class NotPatched(FibError, LookupError):
    """A function has no adapter, or its patch is not installed."""

    function: str
    patched: tuple[str, ...]

    def __str__(self) -> str:
        patched = ", ".join(self.patched) or "nothing; call install_flashinfer_integrations() first"
        return f"{self.function} is not patched (patched: {patched})"
