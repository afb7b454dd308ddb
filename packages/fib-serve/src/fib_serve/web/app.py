"""The application: all routes, answers to errors (RFC 9457), headers, and bounds on bodies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fib_schema import InvalidField, InvalidRecord
from pydantic import ValidationError
from sqlalchemy.exc import OperationalError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from ..contest import Contest
from ..errors import Refused
from ..users import Principal
from . import api, pages
from .access import SAFE_METHODS, Gate, contest_of, find_principal, require_user

_DESCRIPTION = "Evaluates solutions of GPU kernels and ranks them. Errors have the form of RFC 9457."
_BODY_SECONDS = 20.0
_MAX_BODY_BYTES, _SMALL_BODY_BYTES = 4 << 20, 64 << 10
_MAX_FORM_BYTES = 10_000
_OPEN = ("/health", "/ready", "/openapi.json", "/static/", "/login", "/logout")
_SUBMITTING = ("/v1/submissions", "/evaluate", "/leaderboard/")
_MARKS = (b"[", b"{", b",")
_MAX_MARKS = 200_000  # values of parsed JSON take many times the memory of its text
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Cache-Control": "no-store",
}
_MAX_SHOWN, _MAX_QUOTED, _MAX_CHARACTERS = 20, 3, 500
_LOG = logging.getLogger(__name__)


def make_app(contest: Contest) -> FastAPI:
    """The application of a contest."""
    app = FastAPI(title="fib-serve", version=__version__, description=_DESCRIPTION, docs_url=None, redoc_url=None)
    app.state.contest = contest
    app.state.gate = Gate()
    _add_handlers(app)
    app.include_router(api.router)
    app.include_router(pages.router)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
    app.add_middleware(_Protection)
    return app


# -- headers and bodies ------------------------------------------------------------------------------


class _Protection:
    """ASGI middleware that reads bodies only of users, bounds them and requests, and adds headers to all answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope)
        async with AsyncExitStack() as stack:
            try:
                await self._admit(request, receive, stack)
            except ClientDisconnect:
                return
            except (Refused, OperationalError) as error:
                handle = _refused if isinstance(error, Refused) else _database
                await handle(request, error)(scope, receive, protected)
                return
            await self._app(scope, receive, protected)

    async def _admit(self, request: Request, receive: Receive, stack: AsyncExitStack) -> None:
        """Find the user of a request, count the request until its answer is sent, and read its body."""
        principal, most, gate = None, _MAX_FORM_BYTES, request.app.state.gate
        if not request.url.path.startswith(_OPEN):
            async with gate.turns:
                principal = await run_in_threadpool(_principal, request)
        if principal is not None:
            most = _MAX_BODY_BYTES
            stack.enter_context(gate.admitted(principal.user_id))
            if not _is_small(request):
                await stack.enter_async_context(gate.bodies[principal.user_id])
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                request.state.body = await _read_body(receive, most)
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {_BODY_SECONDS:g} s") from None


def _principal(request: Request) -> Principal | None:
    """The user of a request; who has none sends no body but that of the form to log in, and nobody fills the disk."""
    if request.method not in SAFE_METHODS:
        principal = require_user(request)
        if request.scope["path"].startswith(_SUBMITTING):
            api.check_room(contest_of(request), HTTPStatus.INSUFFICIENT_STORAGE)  # clients repeat a 503
        return principal
    with suppress(Refused):  # the route answers with it
        return find_principal(request)
    return None


async def _read_body(receive: Receive, most: int) -> bytes:
    """The body of a request, up to a size and a number of values."""
    parts, size, marks, is_whole = [], 0, 0, False
    while not is_whole:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise Refused(413, f"the body is larger than {most} bytes, the limit")
        marks += sum(map(parts[-1].count, _MARKS))
        if marks > _MAX_MARKS:
            problem = f"the body has more than {_MAX_MARKS} brackets and commas, the limit; send smaller values"
            raise Refused(422, problem)
        is_whole = not message.get("more_body", False)
    return b"".join(parts)


def _is_small(request: Request) -> bool:
    """Whether a body says that it needs little memory."""
    length = request.headers.get("content-length", "" if "transfer-encoding" in request.headers else "0")
    return length.isdecimal() and int(length) <= _SMALL_BODY_BYTES


# -- errors ------------------------------------------------------------------------------------------


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """An error answer."""
    content = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **more}
    return JSONResponse(content, status, headers, media_type="application/problem+json")


def _add_handlers(app: FastAPI) -> None:
    """Turn the exceptions of routes into answers."""
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(ValidationError, _invalid_request)
    app.add_exception_handler(InvalidRecord, _invalid_record)
    app.add_exception_handler(InvalidField, _invalid_record)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(OperationalError, _database)
    app.add_exception_handler(Exception, _unexpected)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    headers = {"Connection": "close"} if error.status in (408, 413) else {}  # the rest of the body is not read
    if error.retry_after_seconds is not None:
        headers["Retry-After"] = str(error.retry_after_seconds)
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="fib-serve"'
    return _answer(request, error.status, error.detail, headers)


def _answer(request: Request, status: int, detail: str, headers: Mapping[str, str]) -> Response:
    """An error answer: a page for browsers, except from routes of the API."""
    if not _is_for_browser(request):
        return problem(status, detail, headers)
    page = pages.error_page(request, status, HTTPStatus(status).phrase, detail)
    page.headers.update(headers)
    return page


def _is_for_browser(request: Request) -> bool:
    """Whether a browser shows the answer, of a page or of no route: the API answers it with JSON too."""
    route, path = request.scope.get("route"), request.scope["path"]  # a refused body has no route yet
    is_api = route.include_in_schema if isinstance(route, Route) else path.startswith(_SUBMITTING[:2])
    return not is_api and "text/html" in request.headers.get("accept", "")


def _invalid_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError | ValidationError)
    found = error.errors()[:_MAX_SHOWN]
    return _problems("request", [(".".join(map(str, each["loc"])) or "body", each["msg"]) for each in found])


def _invalid_record(request: Request, error: Exception) -> Response:
    if _is_for_browser(request):
        return pages.error_page(request, 422, "Not accepted", _shortened(str(error)))
    if not isinstance(error, InvalidRecord):
        return problem(422, _shortened(str(error)))
    return _problems(error.kind, [(each.path, each.message) for each in error.problems[:_MAX_SHOWN]])


def _problems(subject: str, found: list[tuple[str, str]]) -> Response:
    """The answer to a request with problems, each with its place."""
    problems = [{"at": _shortened(place), "problem": _shortened(text)} for place, text in found]
    detail = "; ".join(f"{each['at']}: {each['problem']}" for each in problems[:_MAX_QUOTED])
    return problem(422, f"not a valid {subject}: {detail}", problems=problems)


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _answer(request, error.status_code, str(error.detail), error.headers or {})


def _database(_: Request, error: Exception) -> Response:
    _LOG.error("the database failed: %s", error)
    return problem(503, "the database is busy, or the disk is full; try again", {"Retry-After": "1"})


def _unexpected(request: Request, error: Exception) -> Response:
    _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(500, "the service has failed; its log has the reason")


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
