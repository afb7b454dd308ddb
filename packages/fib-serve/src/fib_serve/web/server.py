"""HTTP server: uvicorn, with bounds on the headers and on the number of waiting requests, which it lacks."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from http import HTTPStatus
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .problems import problem
from .state import Service

_HEADER_SECONDS = 10.0
_MAX_HEADER_BYTES = 64 << 10
_MAX_CONNECTIONS = 2000
_KEEP_ALIVE_SECONDS = 10
_GRACEFUL_SECONDS = 10
_TICKS_PER_COLLECTION = 100  # of a tenth of a second each
_MAX_PIPELINED = 100  # requests of a connection that wait for the answers before them; one takes 2 KiB


class BoundedProtocol(HttpToolsProtocol):  # type: ignore[misc, unused-ignore]  # untyped in some versions
    """The HTTP protocol, which closes connections with large or slow headers or with many waiting requests."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._header_bytes = 0
        self._header_count = 0
        """Requests with complete headers so far."""
        self._is_body = False
        """Whether the next byte belongs to a body."""
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect the headers of the first request."""
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data in pieces that end at the bound of headers: one read may bring more than the bound."""
        while data and not self.transport.is_closing():
            is_body, count = self._is_body, self._header_count
            size = len(data) if is_body else _MAX_HEADER_BYTES - self._header_bytes
            piece, data = data[:size], data[size:]
            super().data_received(piece)
            if not is_body and count == self._header_count:
                self._header_bytes += len(piece)
                if self._header_bytes >= _MAX_HEADER_BYTES:
                    self._refuse(431, f"the headers are larger than {_MAX_HEADER_BYTES} bytes, the limit")

    def on_message_begin(self) -> None:
        """Expect the headers of the next request."""
        super().on_message_begin()
        self._expect_headers()

    def on_headers_complete(self) -> None:
        """Stop the timer: the body has bounds of its own."""
        self._stop_timer()
        self._header_count += 1
        self._is_body = True
        super().on_headers_complete()
        if len(self.pipeline) > _MAX_PIPELINED:
            self.transport.close()  # an answer would be taken for that of an earlier request

    def on_message_complete(self) -> None:
        """Start to count the headers of the next request."""
        self._is_body, self._header_bytes = False, 0
        super().on_message_complete()

    def _expect_headers(self) -> None:
        self._stop_timer()
        self._header_bytes = 0
        self._header_timer = self.loop.call_later(
            _HEADER_SECONDS, self._refuse, 408, f"the headers did not arrive within {_HEADER_SECONDS:g} s"
        )

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._refuse(400, msg)

    def _refuse(self, status: int, detail: str) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            phrase = HTTPStatus(status).phrase
            answer = problem(status, phrase, detail, {"Connection": "close"})
            head = b"".join(b"%s: %s\r\n" % field for field in answer.raw_headers)
            self.transport.write(f"HTTP/1.1 {status} {phrase}\r\n".encode() + head + b"\r\n" + bytes(answer.body))
            self.transport.close()


class Server(uvicorn.Server):
    """The server of a service; SIGUSR1 makes it refuse submissions, SIGTERM ends it.

    Args:
        app: The application.
        service: The service.
    """

    def __init__(self, app: FastAPI, service: Service) -> None:
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_GRACEFUL_SECONDS,
            backlog=2048,
        )
        super().__init__(config)
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # `problems` logs errors of routes
        self._service = service

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal comes."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._drain)
        await super().serve(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Collect garbage every 10 seconds.

        Only a full collection empties CPython's free lists of tuples, which take 0.9 KB more a second until each of 20
        sizes has 2000. By itself one comes after minutes: when a quarter more objects have survived younger ones.
        """
        if counter % _TICKS_PER_COLLECTION == 0:
            gc.collect()  # takes about 4 ms with the 12,700 objects that are not frozen
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Answer requests that wait, then end."""
        self._drain()
        if not self._service.changes.is_closed:
            self._service.changes.end_waiting()
        super().handle_exit(sig, frame)

    def _drain(self) -> None:
        self._service.is_draining = True
