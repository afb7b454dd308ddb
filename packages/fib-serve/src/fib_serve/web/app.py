"""The application: all routes, answers to errors (RFC 9457), headers, and bounds on bodies."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeAlias

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fib_schema import InvalidField, InvalidRecord
from sqlalchemy.exc import OperationalError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles

from .. import __version__
from ..contest import Contest
from ..errors import Refused
from ..users import Role
from . import api, pages
from .access import Gate, require

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

_DESCRIPTION = "Evaluates solutions of GPU kernels and ranks them. Errors have the form of RFC 9457."
_BODY_SECONDS = 20.0
_SMALL_BODY_BYTES = 64 << 10
_MAX_FORM_BYTES = 10_000
_FORMS = ("/login", "/logout")
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
_MAX_SHOWN = 20
_MAX_CHARACTERS = 500
_LOG = logging.getLogger(__name__)


def make_app(contest: Contest) -> FastAPI:
    """The application of a contest."""
    app = FastAPI(
        title="fib-serve",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
    )
    app.state.contest = contest
    app.state.gate = Gate(contest.settings.requests_per_second)
    _add_handlers(app)
    app.include_router(api.router)
    app.include_router(pages.router)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
    app.add_middleware(_Protection, max_body_bytes=contest.settings.max_body_bytes)
    return app


# -- headers and bodies ------------------------------------------------------------------------------


class _Protection:
    """ASGI middleware that reads bodies only of users, bounds them, and adds headers to all answers."""

    def __init__(self, app: App, max_body_bytes: int) -> None:
        self._app, self._max_body_bytes = app, max_body_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
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

        async with AsyncExitStack() as stack:
            if scope["method"] == "POST" and scope["path"] not in _FORMS:
                request = Request(scope)
                try:
                    principal = await run_in_threadpool(require(Role.READER), request)
                except Refused as error:
                    await _refused(request, error)(scope, receive, protected)
                    return
                if not _is_small(request):
                    await stack.enter_async_context(request.app.state.gate.bodies[principal.user_id])
            await self._app(scope, self._bounded(scope, receive), protected)

    def _bounded(self, scope: Message, receive: Receive) -> Receive:
        """Receives the parts of a body, up to a size, a time, and a number of values."""
        most = _MAX_FORM_BYTES if scope["path"] in _FORMS else self._max_body_bytes
        begin, size, marks, is_whole = time.monotonic(), 0, 0, False

        async def bounded() -> Message:
            nonlocal size, marks, is_whole
            if is_whole:  # what follows announces the departure of the client
                return await receive()
            try:
                async with asyncio.timeout(begin + _BODY_SECONDS - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                detail = f"the body did not arrive within {_BODY_SECONDS:g} s"
                raise HTTPException(408, detail, {"Connection": "close"}) from None
            part = message.get("body", b"")
            size += len(part)
            if size > most:
                detail = f"the body is larger than {most} bytes, the limit"
                raise HTTPException(413, detail, {"Connection": "close"})
            marks += sum(map(part.count, _MARKS))
            if marks > _MAX_MARKS:
                detail = f"the body has more than {_MAX_MARKS} brackets and commas, the limit; send smaller values"
                raise HTTPException(422, detail, {"Connection": "close"})
            is_whole = not message.get("more_body", False)
            return message

        return bounded


def _is_small(request: Request) -> bool:
    """Whether a body says that it needs little memory."""
    length = request.headers.get("content-length", "")
    return length.isdecimal() and int(length) <= _SMALL_BODY_BYTES


# -- errors ------------------------------------------------------------------------------------------


def problem(status: int, detail: str, headers: dict[str, str] | None = None, **more: Any) -> Response:
    """An error answer."""
    content = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **more}
    return JSONResponse(content, status, headers, media_type="application/problem+json")


def _add_handlers(app: FastAPI) -> None:
    """Turn the exceptions of routes into answers."""
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(InvalidRecord, _invalid_record)
    app.add_exception_handler(InvalidField, _invalid_record)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(OperationalError, _database)
    app.add_exception_handler(Exception, _unexpected)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    if _is_for_browser(request):
        return pages.error_page(request, error.status, HTTPStatus(error.status).phrase, error.detail)
    headers = {}
    if error.retry_after_seconds is not None:
        headers["Retry-After"] = str(error.retry_after_seconds)
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="fib-serve"'
    return problem(error.status, error.detail, headers)


def _is_for_browser(request: Request) -> bool:
    """Whether a browser shows the answer: routes of the API answer it with JSON too."""
    route = request.scope.get("route")
    return not getattr(route, "include_in_schema", True) and "text/html" in request.headers.get("accept", "")


def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [
        {"at": ".".join(_shortened(str(part)) for part in found["loc"]), "problem": _shortened(found["msg"])}
        for found in error.errors()[:_MAX_SHOWN]
    ]
    detail = "; ".join(f"{each['at']}: {each['problem']}" for each in problems)
    if isinstance(error.body, bytes):  # FastAPI parses a body only with the content type of JSON
        sent = _shortened(request.headers.get("content-type") or "none")
        detail = f"the body is read only with the header 'Content-Type: application/json', sent was {sent}; {detail}"
    return problem(422, f"the request is not valid: {detail}", problems=problems)


def _invalid_record(_: Request, error: Exception) -> Response:
    if not isinstance(error, InvalidRecord):
        return problem(422, _shortened(str(error)))
    problems = [
        {"at": _shortened(each.path), "problem": _shortened(each.message)} for each in error.problems[:_MAX_SHOWN]
    ]
    detail = f"not a valid {error.kind}: {'; '.join(_shortened(each.message) for each in error.problems[:3])}"
    return problem(422, detail, problems=problems)


def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return problem(error.status_code, str(error.detail), headers)


def _database(_: Request, error: Exception) -> Response:
    _LOG.error("the database failed: %s", error)
    return problem(503, "the database is busy, or the disk is full; try again", {"Retry-After": "1"})


def _unexpected(request: Request, error: Exception) -> Response:
    _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(500, "the service has failed; its log has the reason")


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
