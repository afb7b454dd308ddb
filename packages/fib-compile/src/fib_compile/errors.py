"""Errors of fib-compile."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from fib_schema import FibError, Solution

_MAX_DETAIL_LINES = 40


class BuildProblem(FibError, ValueError):
    """A reason why a solution cannot be built, with its remedy and the lines that explain it; see `of`."""

    def __init__(self, problem: str, details: Sequence[str] = ()) -> None:
        super().__init__(problem)
        self.details = tuple(details)

    def of(self, solution: Solution, builder: str) -> BuildError:
        """The error for users, which names the solution and its language."""
        return BuildError(solution.name, builder, str(self), self.details, language=solution.spec.language)


@attrs.frozen
class BuildError(FibError, RuntimeError):
    """A solution that could not be built."""

    solution: str
    """The solution's name."""
    builder: str | None
    """The builder that failed; None if no builder takes the solution."""
    problem: str
    """The problem and its remedy."""
    details: tuple[str, ...] = ()
    """The first compiler errors, or the traceback inside the solution."""
    command: str | None = None
    """The command that failed."""
    exit_code: int | None = None
    log_path: str | None = None
    """The file with the whole output of the command."""
    language: str | None = None
    """The language of the solution, which messages show; without it they show the builder."""

    def __str__(self) -> str:
        by = f" ({self.language or self.builder})" if self.language or self.builder else ""
        lines = [f"solution {self.solution!r}{by}: {self.problem}"]
        lines += [f"  {line}" for line in self.details[:_MAX_DETAIL_LINES]]
        if hidden := len(self.details) - _MAX_DETAIL_LINES:
            lines += [f"  ... {hidden} more lines"] if hidden > 0 else []
        if self.command:
            code = "" if self.exit_code is None else f" (exit code {self.exit_code})"
            lines.append(f"  command{code}: {self.command}")
        if self.log_path:
            lines.append(f"  whole log: {self.log_path}")
        return "\n".join(lines)


@attrs.frozen
class BuilderConflict(FibError, ValueError):
    """Two builders with the same name, package prefix or folder."""

    field: str
    value: str
    registered: str
    """The class that was registered first."""
    rejected: str

    def __str__(self) -> str:
        return f"builder {self.rejected} has {self.field} {self.value!r}, and so has {self.registered}; rename one"


@attrs.frozen
class InvalidDevice(FibError, ValueError):
    """A device name that is neither ``cpu`` nor ``cuda:N``."""

    name: str

    def __str__(self) -> str:
        return f"{self.name!r} is not a device; write 'cpu' or 'cuda:N', such as 'cuda:0'"


@attrs.frozen
class InvalidLimit(FibError, ValueError):
    """A limit of a build that is not greater than 0."""

    field: str
    value: float

    def __str__(self) -> str:
        return f"{self.field}: must be greater than 0, got {self.value:g}"


def check_limit(field: str, value: float | None) -> None:
    """Check a limit; None is unlimited.

    Raises:
        InvalidLimit: It is not greater than 0.
    """
    if value is not None and not value > 0:
        raise InvalidLimit(field, value)


@attrs.frozen
class UnknownDType(FibError, ValueError):
    """A name that is not a dtype of definitions."""

    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name!r} is not a dtype (known: {', '.join(self.known)})"
