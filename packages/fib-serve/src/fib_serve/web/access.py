"""Access of requests to the service: the token in the header or the session of the pages, roles, and rate limits."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

import attrs
from fastapi import Depends, Request
from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from starlette.requests import HTTPConnection

from ..contest import Contest
from ..errors import Refused
from ..settings import is_loopback
from ..users import Principal, Role, authenticate

COOKIE = "fib_serve_session"
_WINDOW_SECONDS = 10
_MAX_SESSIONS = 50  # of a token: no user ends the logins of others
_BODIES_AT_ONCE = 2
_TURNS = 8  # the event loop takes turns: what needs no user, as `/health`, waits for few others
_MAX_REQUESTS = 200  # of a user at the same time: all users together have 2000 connections
SAFE_METHODS = ("GET", "HEAD")


def contest_of(connection: HTTPConnection) -> Contest:
    """The contest of a request."""
    contest = connection.app.state.contest
    assert isinstance(contest, Contest)
    return contest


@attrs.define(eq=False)
class Gate:
    """Resolves tokens, keeps the sessions of browsers, and counts requests."""

    rate: float = 50.0
    """Requests of a user in a second, averaged over ten seconds."""
    limiter: FixedWindowRateLimiter = attrs.field(factory=lambda: FixedWindowRateLimiter(MemoryStorage()))
    sessions: dict[str, str] = attrs.field(factory=dict, repr=False)
    """The token of each session; a restart ends all."""
    turns: asyncio.Semaphore = attrs.field(factory=lambda: asyncio.Semaphore(_TURNS))
    """Bounds the requests that are admitted at the same time."""
    bodies: dict[int, asyncio.Semaphore] = attrs.field(
        factory=lambda: defaultdict(lambda: asyncio.Semaphore(_BODIES_AT_ONCE))
    )
    """Bounds the large bodies of each user that are in memory at the same time."""
    requests: Counter[int] = attrs.field(factory=Counter)
    """The requests of each user that send a body, wait or are answered."""
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def open_session(self, token: str) -> str:
        """The id of a new session, in place of the oldest of the token if it has too many."""
        session = secrets.token_urlsafe(32)
        with self._lock:
            own = [each for each, other in list(self.sessions.items()) if other == token]
            for oldest in own[: len(own) - _MAX_SESSIONS + 1]:
                self.sessions.pop(oldest, None)  # a logout may have been faster
            self.sessions[session] = token
        return session

    @contextmanager
    def admitted(self, user_id: int) -> Iterator[None]:
        """Count a request of a user until it is answered."""
        if self.requests[user_id] >= _MAX_REQUESTS:
            detail = f"{_MAX_REQUESTS} of your requests are in progress, the limit; wait until some are answered"
            raise Refused(429, detail, _WINDOW_SECONDS)
        self.requests[user_id] += 1
        try:
            yield
        finally:
            self.requests[user_id] -= 1

    def count(self, principal: Principal, weight: int = 1) -> None:
        """Count a request of a user, which may weigh as much as several."""
        most = int(self.rate * _WINDOW_SECONDS)
        limit = RateLimitItemPerSecond(most, _WINDOW_SECONDS)
        if not self.limiter.hit(limit, str(principal.user_id), cost=min(weight, most)):
            detail = f"more than {self.rate:g} requests a second over {_WINDOW_SECONDS} s; slow down"
            raise Refused(429, detail, _WINDOW_SECONDS)

    def principal(self, contest: Contest, token: str) -> Principal | None:
        """The user of a token, counted."""
        with contest.database.read() as connection:
            found = authenticate(connection, token)
        if found is not None:
            self.count(found)
        return found


def find_principal(request: Request) -> Principal | None:
    """The user of a request, who is looked up once; None without a token."""
    if not hasattr(request.state, "principal"):
        try:
            request.state.principal = _look_up(request)
        except Refused as error:
            request.state.principal = error
    found: Principal | Refused | None = request.state.principal
    if isinstance(found, Refused):
        raise found
    return found


def _look_up(request: Request) -> Principal | None:
    contest = contest_of(request)
    if contest.local is not None:
        _check_site(request)
        return contest.local
    token = _token_of(request)
    if token is None:
        return None
    gate: Gate = request.app.state.gate
    found = gate.principal(contest, token)
    if found is None:
        raise Refused(401, "the token is not valid: it is unknown, expired or revoked; ask a maintainer for one")
    return found


def require_user(request: Request) -> Principal:
    """The dependency of a route that needs a token."""
    principal = find_principal(request)
    if principal is None:
        raise Refused(401, "a token is needed: send 'Authorization: Bearer TOKEN'; commands take FIB_SERVE_TOKEN")
    return principal


def _require_maintainer(request: Request) -> Principal:
    principal = require_user(request)
    if principal.role is not Role.MAINTAINER:
        raise Refused(403, f"this needs the role maintainer, and your token has {principal.role}; ask a maintainer")
    return principal


def _viewer(request: Request) -> Principal | None:
    """The user of a page that may be public."""
    principal = find_principal(request)
    if principal is None and not contest_of(request).settings.has_public_pages:
        raise Refused(401, "a token is needed: send 'Authorization: Bearer TOKEN', or log in at /login")
    return principal


def check_origin(request: Request) -> None:
    """Refuse a request that a browser sends for a page of another site."""
    origin = request.headers.get("origin")
    if origin is None and COOKIE in request.cookies and request.method not in SAFE_METHODS:
        raise Refused(403, "a request with the cookie of the pages needs the header Origin; programs send a token")
    host = request.headers.get("host", "")
    if origin is not None and (not host or origin.partition("://")[2] != host):
        names = f"Origin {origin[:100]!r} is not the Host {host[:100]!r}"
        raise Refused(
            403, f"the request was sent by another site: {names}; a reverse proxy must pass Host on unchanged"
        )


def _check_site(request: Request) -> None:
    """Refuse requests of other sites where no token tells them apart from those of this machine.

    A site can point its own name at this machine (DNS rebinding); then only the header Host has that name.
    """
    check_origin(request)
    host = request.headers.get("host", "")
    if not _is_this_machine(host):
        raise Refused(403, f"without tokens the host must be localhost or a loopback address, not {host[:100]!r}")


def _is_this_machine(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name.endswith(".localhost") or is_loopback(name)


def _token_of(request: Request) -> str | None:
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Refused(401, "the header Authorization must be 'Bearer TOKEN'")
        return token.strip()
    if COOKIE not in request.cookies:
        return None
    check_origin(request)
    gate: Gate = request.app.state.gate
    return gate.sessions.get(request.cookies[COOKIE])


User: TypeAlias = Annotated[Principal, Depends(require_user)]
Maintainer: TypeAlias = Annotated[Principal, Depends(_require_maintainer)]
Viewer: TypeAlias = Annotated[Principal | None, Depends(_viewer)]
OfContest: TypeAlias = Annotated[Contest, Depends(contest_of)]
