"""Errors of routing; each is a `fib_schema.FibError`."""

from __future__ import annotations

import attrs
from fib_schema import FibError


@attrs.frozen
class InvalidSetting(FibError, ValueError):
    """A setting has an invalid value."""

    name: str
    value: object
    wanted: str

    def __str__(self) -> str:
        return f"{self.name}: got {self.value!r}, expected {self.wanted}"


@attrs.frozen
class UnusableOption(FibError, ValueError):
    """An option of a command names something that a data set does not have, or has no effect."""

    setting: str
    problem: str

    def __str__(self) -> str:
        option = "on-miss" if self.setting == "on_miss_policy" else self.setting.replace("_", "-")
        return f"--{option}: {self.problem}"


@attrs.frozen
class NoKernel(FibError, LookupError, RuntimeError):
    """A call is served by no solution and has no fallback."""

    definition: str
    reason: str

    def __str__(self) -> str:
        return f"no solution serves this call of {self.definition!r}: {self.reason}; pass a fallback"


@attrs.frozen
class CannotRoute(FibError, TypeError):
    """A function's parameters do not match a definition's inputs and outputs."""

    definition: str
    problem: str

    def __str__(self) -> str:
        return f"calls of {self.definition!r} cannot be routed: {self.problem}"


@attrs.frozen
class ConfigProblem:
    """One thing that is wrong in a configuration file."""

    line: int | None
    """Counted from 1; None if no line is to blame."""
    path: str
    """The keys that lead to it, joined by points; empty for the file as a whole."""
    message: str
    """The finding and the remedy."""


@attrs.frozen
class InvalidConfigFile(FibError, ValueError):
    """A configuration file that is not valid; holds all of its problems."""

    path: str
    problems: tuple[ConfigProblem, ...]

    def lines(self) -> list[str]:
        """One line for each problem: file, line, setting, and what is wrong."""
        found = []
        for problem in self.problems:
            place = self.path if problem.line is None else f"{self.path}:{problem.line}"
            found.append(
                f"{place}: {problem.path}: {problem.message}" if problem.path else f"{place}: {problem.message}"
            )
        return found

    def __str__(self) -> str:
        return "the configuration is not valid:\n  " + "\n  ".join(self.lines())
