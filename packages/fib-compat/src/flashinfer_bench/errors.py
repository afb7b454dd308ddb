"""What a program hears that asks for something that is not here."""

from __future__ import annotations

import attrs
from fib_schema import FibError


@attrs.frozen
class NotOffered(FibError, ImportError):
    """A documented name that has no equivalent; an ImportError, so that ``from ... import`` shows the reason."""

    documented: str
    instead: str

    def __str__(self) -> str:
        return f"{self.documented} is not offered: {self.instead}"


class MixedInstallation(UserWarning):
    """Two distributions have put files into the same package."""
