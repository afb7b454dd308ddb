"""Exceptions and warnings of fib-compat."""

from __future__ import annotations

import attrs
from fib_schema import FibError


@attrs.frozen
class NotOffered(FibError, ImportError):
    """A documented name that fib-compat does not offer.

    An ImportError, so that ``from ... import`` shows the reason.
    """

    documented: str
    instead: str

    def __str__(self) -> str:
        return f"{self.documented} is not offered: {self.instead}"


class MixedInstallation(UserWarning):
    """Two distributions have installed files into the same package."""
