"""Exceptions of fib-tracer, which are `fib_schema.FibError`s."""

from __future__ import annotations

import attrs
from fib_schema import FibError


@attrs.frozen
class InvalidSetting(FibError, ValueError):
    """A setting has a value that is not allowed."""

    name: str
    value: object
    wanted: str

    def __str__(self) -> str:
        return f"{self.name}: got {self.value!r}, expected {self.wanted}"
