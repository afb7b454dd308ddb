"""Errors of authoring: what is wrong with a file that someone wrote, and the remedy."""

from __future__ import annotations

import attrs
from fib_schema import FibError


@attrs.frozen
class KernelFileError(FibError, ValueError):
    """A file or folder that no solution or definition can be made of."""

    path: str
    problem: str
    """The problem and its remedy."""

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"
