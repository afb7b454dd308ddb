"""Error answers in the form of RFC 9457. ``detail`` holds the text that older clients expect."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fib_schema import InvalidField, InvalidRecord
from sqlalchemy.exc import DataError, InterfaceError, OperationalError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from ..errors import Refused, TooMany, Unauthorized

MEDIA_TYPE = "application/problem+json"
_MAX_SHOWN = 20
_MAX_CHARACTERS = 500
_LOG = logging.getLogger(__name__)


def problem(status: int, title: str, detail: str, headers: dict[str, str] | None = None, **more: Any) -> Response:
    """An error answer."""
    content = {"type": "about:blank", "title": title, "status": status, "detail": detail, **more}
    return JSONResponse(content, status, headers, media_type=MEDIA_TYPE)


def add_handlers(app: FastAPI) -> None:
    """Turn the exceptions of routes into answers."""
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(InvalidRecord, _invalid_record)
    app.add_exception_handler(InvalidField, _invalid_field)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(OperationalError, _database)
    app.add_exception_handler(InterfaceError, _database)
    app.add_exception_handler(DataError, _unstorable)
    app.add_exception_handler(Exception, _unexpected)


def refusal(error: Refused) -> Response:
    """The answer for a refused request."""
    headers = {}
    if isinstance(error, TooMany):
        headers["Retry-After"] = str(error.retry_after_seconds)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = 'Bearer realm="fib-serve"'
    return problem(error.status, error.title, error.detail, headers)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    if _is_for_browser(request):
        page: Response = request.app.state.error_page(request, error.status, error.title, error.detail)
        return page
    return refusal(error)


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
    return problem(422, "Unprocessable content", f"the request is not valid: {detail}", problems=problems)


def _invalid_record(_: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidRecord)
    problems = [
        {"at": _shortened(each.path), "problem": _shortened(each.message)} for each in error.problems[:_MAX_SHOWN]
    ]
    detail = f"not a valid {error.kind}: {'; '.join(_shortened(each.message) for each in error.problems[:3])}"
    return problem(422, "Unprocessable content", detail, problems=problems)


def _invalid_field(_: Request, error: Exception) -> Response:
    return problem(422, "Unprocessable content", _shortened(str(error)))


def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return problem(error.status_code, HTTPStatus(error.status_code).phrase, str(error.detail), headers)


def _database(_: Request, error: Exception) -> Response:
    _LOG.error("the database failed: %s", error)
    return problem(
        503, "Service unavailable", "the database is busy, full or not reachable; try again", {"Retry-After": "1"}
    )


def _unstorable(_: Request, error: Exception) -> Response:
    _LOG.warning("the database refuses a value: %s", error)
    detail = "a value cannot be stored: it has a null character, or is too long or too large"
    return problem(422, "Unprocessable content", detail)


def _unexpected(request: Request, error: Exception) -> Response:
    _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(500, "Internal server error", "the service has failed; its log has the reason")


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
