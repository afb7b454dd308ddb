"""What fib-compile raises."""

from __future__ import annotations

import attrs
from fib_schema import FibError

_MAX_DETAIL_LINES = 40


@attrs.frozen
class BuildError(FibError, RuntimeError):
    """A solution that could not be built."""

    solution: str
    """The solution's name."""
    builder: str | None
    """The builder that failed, or None where no builder took the solution."""
    problem: str
    """What was wrong and what would do."""
    details: tuple[str, ...] = ()
    """The lines that matter: the first compiler errors, or the traceback inside the solution."""
    command: str | None = None
    """The command that failed."""
    exit_code: int | None = None
    log_path: str | None = None
    """The file that holds the whole output of the command."""

    def __str__(self) -> str:
        by = f" ({self.builder})" if self.builder else ""
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
    """Two builders that claim the same thing."""

    field: str
    value: str
    registered: str
    """The class that has it."""
    rejected: str

    def __str__(self) -> str:
        return f"builder {self.rejected} has {self.field} {self.value!r}, and so has {self.registered}; rename one"


@attrs.frozen
class InvalidDevice(FibError, ValueError):
    """A device name that is neither ``cpu`` nor ``cuda:N``."""

    name: str

    def __str__(self) -> str:
        return f"{self.name!r} is no device; write 'cpu' or 'cuda:N', such as 'cuda:0'"


@attrs.frozen
class InvalidLimit(FibError, ValueError):
    """A number that says how much a build may use, and is not greater than 0."""

    field: str
    value: float

    def __str__(self) -> str:
        return f"{self.field}: must be greater than 0, got {self.value:g}"


def check_limit(field: str, value: float | None) -> None:
    """See that a limit leaves something to use.

    Raises:
        InvalidLimit: It does not.
    """
    if value is not None and not value > 0:
        raise InvalidLimit(field, value)


@attrs.frozen
class UnknownDType(FibError, ValueError):
    """A name that is no dtype of a definition."""

    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name!r} is no dtype (known: {', '.join(self.known)})"
