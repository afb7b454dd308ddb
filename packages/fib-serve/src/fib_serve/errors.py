"""Exceptions of fib-serve. Those with a status become answers of the API; `web.app` writes them."""

from __future__ import annotations

from http import HTTPStatus

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
    """A request that the service refuses."""

    detail: str
    """The problem and its remedy, for the client."""

    status = 400

    def __str__(self) -> str:
        return self.detail

    @property
    def title(self) -> str:
        """The name of the status."""
        return HTTPStatus(self.status).phrase


@attrs.frozen
class Unauthorized(Refused):
    """A request without a valid token."""

    status = 401


@attrs.frozen
class Forbidden(Refused):
    """A request that the role of the user does not allow."""

    status = 403


@attrs.frozen
class NotFound(Refused, LookupError):
    """Something that does not exist, or that the user may not see."""

    status = 404


@attrs.frozen
class Conflict(Refused):
    """A request that contradicts the state of the service."""

    status = 409


@attrs.frozen
class Unprocessable(Refused, ValueError):
    """A request whose content is not valid."""

    status = 422


@attrs.frozen
class TooMany(Refused):
    """A request beyond a rate limit or a quota."""

    retry_after_seconds: int = 1

    status = 429


@attrs.frozen
class Unavailable(Refused):
    """A request while the service drains."""

    status = 503
