"""Errors of an import."""

from __future__ import annotations

import attrs
from fib_schema import FibError


@attrs.frozen
class ProblemError(FibError, ValueError):
    """A problem of another benchmark that cannot be imported."""

    path: str
    problem: str
    """The problem and its remedy."""

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"
