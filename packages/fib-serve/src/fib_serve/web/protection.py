"""ASGI middleware against hostile requests: large or slow bodies, compressed bodies, unknown hosts, missing headers.

A body is read whole before the application sees the request, within bounds on its size and on the time that it takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

from .metrics import Metrics
from .problems import problem

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_BODY_SECONDS = 20.0
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
}


class Protection:
    """Bounds bodies and adds headers to all answers.

    Args:
        app: The application.
        max_body_bytes: The largest body.
        metrics: Metrics of the process.
    """

    def __init__(self, app: App, max_body_bytes: int, metrics: Metrics) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        observed = _CountingSend(send, scope, self._metrics)
        body = await self._read_body(Headers(scope=scope), receive)
        if isinstance(body, Response):
            await body(scope, receive, observed)
        elif body is not None:
            await self._app(scope, _replay(body, receive), observed)

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes | Response | None:
        """The body, the refusal of it, or None if the client has gone."""
        if headers.get("content-encoding", "identity").lower() != "identity":
            return problem(415, "Unsupported media type", "send the body without Content-Encoding")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > self._max_body_bytes:
            return self._too_large()
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if size > self._max_body_bytes:
                        return self._too_large()
                    if not message.get("more_body", False):
                        return b"".join(chunks)
        except TimeoutError:
            detail = f"the body did not arrive within {_BODY_SECONDS:g} s"
            return problem(408, "Request timeout", detail, {"Connection": "close"})

    def _too_large(self) -> Response:
        limit = self._max_body_bytes
        detail = f"the body is larger than {limit} bytes, the limit; leave out what the solution does not need"
        return problem(413, "Content too large", detail, {"Connection": "close"})


class _CountingSend:
    """Sends the messages of an answer, with the headers that all answers have, and counts it."""

    def __init__(self, send: Send, scope: Scope, metrics: Metrics) -> None:
        self._send, self._scope, self._metrics = send, scope, metrics
        self._begin = time.monotonic()

    async def __call__(self, message: Message) -> None:
        """Send one message."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
            route = getattr(self._scope.get("route"), "path", "none")
            method = self._scope["method"] if route != "none" else "other"
            self._metrics.requests.labels(method, route, message["status"]).inc()
            self._metrics.seconds.labels(route).observe(time.monotonic() - self._begin)
        await self._send(message)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Messages with a body that was read; afterwards those of the client, which announce its departure."""
    is_read = False

    async def replayed() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
