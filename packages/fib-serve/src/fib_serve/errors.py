"""Exceptions of fib-serve."""

from __future__ import annotations

import attrs
from fib_schema import FibError


@attrs.frozen
class InvalidSetting(FibError, ValueError):
    """A setting of the service that is wrong or contradicts another one."""

    setting: str
    problem: str

    def __str__(self) -> str:
        return f"{self.setting}: {self.problem}"


@attrs.frozen
class IsolationTooWeak(FibError, RuntimeError):
    """The machine does not give workers the isolation that the service requires."""

    level: int
    required: int
    report: str

    def __str__(self) -> str:
        return (
            f"the sandbox reaches level {self.level} on this machine, required is {self.required}; code of strangers "
            f"could do more than it should. Remedy: see the reasons below, or accept the risk with "
            f"--allow-isolation {self.level}\n{self.report}"
        )


@attrs.frozen
class DatabaseUnusable(FibError, RuntimeError):
    """A database that cannot be opened or that another version has written."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"database {self.path}: {self.problem}"


@attrs.frozen
class Refused(FibError):
    """A request that the service refuses; all functions that a request reaches may raise it."""

    status: int
    """Of HTTP."""
    detail: str
    """The problem and its remedy, for the client."""
    retry_after_seconds: int | None = None

    def __str__(self) -> str:
        return self.detail
