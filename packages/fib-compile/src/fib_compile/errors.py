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
class InvalidDevice(FibError, ValueError):
    """A device name that is neither ``cpu`` nor ``cuda:N``."""

    name: str

    def __str__(self) -> str:
        return f"{self.name!r} is not a device; write 'cpu' or 'cuda:N', such as 'cuda:0'"
