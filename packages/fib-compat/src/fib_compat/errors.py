"""Exceptions of fib-compat."""

from __future__ import annotations

from fib_schema import FibError


class NotOffered(FibError):
    """Base of the exceptions for documented names that fib-compat does not offer."""

    def __init__(self, documented: str, instead: str) -> None:
        super().__init__(documented, instead)
        self.documented = documented
        self.instead = instead

    def __str__(self) -> str:
        return f"{self.documented} is not offered: {self.instead}"


class NotOfferedAttribute(NotOffered, AttributeError):
    """Raised for ``module.name``, so that `hasattr` is False."""


class NotOfferedImport(NotOffered, ImportError):
    """Raised for ``from module import name`` and ``import module``, so that the import shows the reason."""


class AlreadyImported(FibError, RuntimeError):
    """The real `flashinfer_bench` has been imported before `fib_compat.install`."""
