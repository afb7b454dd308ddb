"""What can go wrong in adapting a library; all of it is a `fib_schema.FibError`."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from fib_schema import FibError


@attrs.frozen
class CannotAdapt(FibError, TypeError):
    """A target is not what its adapter was written for."""

    target: str
    problem: str

    def __str__(self) -> str:
        return f"{self.target} cannot be adapted: {self.problem}"


@attrs.frozen
class UnknownAdapter(FibError, LookupError):
    """There is no adapter of a name that somebody asked for."""

    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"no adapter {self.name!r} (available: {', '.join(self.known)})"


@attrs.frozen
class ClashingAdapters(FibError, ValueError):
    """Two adapters have the same name."""

    name: str
    places: tuple[str, ...]

    def __str__(self) -> str:
        return f"two adapters are called {self.name!r}: of {' and of '.join(self.places)}; rename one"


@attrs.frozen
class NotAdapted(FibError, LookupError):
    """A function has no adapter, or its patch is not installed."""

    function: str
    installed: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.function} is not patched (patched: {_listed(self.installed)})"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing; call install_flashinfer_integrations() first"
