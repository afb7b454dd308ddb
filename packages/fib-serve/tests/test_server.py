"""Tests of the HTTP server: clients that are slow or send endless headers, and garbage collection."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fib_serve.web import protection, server
from fib_serve.web.server import Server

HEAD = b"POST /v1/submissions HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def port(client: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server with short bounds."""
    monkeypatch.setattr(server, "_HEADER_SECONDS", 0.3)
    monkeypatch.setattr(protection, "_BODY_SECONDS", 0.3)
    listener = socket.create_server(("127.0.0.1", 0))
    bounded = Server(client.app, client.app.state.service)
    bounded.config.lifespan = "off"
    thread = threading.Thread(target=lambda: asyncio.run(_serve(bounded, listener)))
    thread.start()
    yield listener.getsockname()[1]
    bounded.should_exit = True
    thread.join()
    listener.close()


async def _serve(bounded: Server, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler = lambda *_: None  # type: ignore[method-assign, assignment]  # not in the main thread
    await bounded.serve([listener])


@pytest.fixture
def connect(port: int) -> Iterator[Callable[[], socket.socket]]:
    opened: list[socket.socket] = []

    def make() -> socket.socket:
        opened.append(socket.create_connection(("127.0.0.1", port), timeout=20))
        return opened[-1]

    yield make
    for connection in opened:
        connection.close()


def answer_of(connection: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_a_client_that_sends_no_headers_is_disconnected(connect: Callable[[], socket.socket]) -> None:
    assert answer_of(connect()).startswith(b"HTTP/1.1 408")
    partly = connect()
    partly.sendall(HEAD + b"X-Slow: ")
    assert answer_of(partly).startswith(b"HTTP/1.1 408")


def test_a_client_whose_body_does_not_arrive_is_answered(connect: Callable[[], socket.socket]) -> None:
    slow = connect()
    slow.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
    assert answer_of(slow).startswith(b"HTTP/1.1 408")


def test_endless_headers_are_refused(connect: Callable[[], socket.socket]) -> None:
    endless = connect()
    endless.sendall(HEAD)
    sent = 0
    try:
        while sent < 10_000_000:
            endless.sendall(b"X-Header: " + b"y" * 1000 + b"\r\n")
            sent += 1012
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert sent < 10_000_000


@pytest.mark.parametrize(("size", "status"), [(60_000, b"200"), (66_000, b"431"), (200_000, b"431")])
@pytest.mark.parametrize("before", [0, 2])
def test_headers_that_arrive_at_once_have_the_same_bound(
    connect: Callable[[], socket.socket], before: int, size: int, status: bytes
) -> None:
    connection = connect()
    for _ in range(before):
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += connection.recv(65536)
    lines = b"".join(b"X-%d: %s\r\n" % (index, b"y" * 990) for index in range(size // 1000))
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + lines + b"\r\n")
    try:
        assert answer_of(connection)[9:12] == status
    except ConnectionResetError:  # with what it has not read the server resets the connection
        assert status == b"431"


@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 99999999999999999999\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /\r\n\r\n",
    ],
)
def test_malformed_requests_are_refused_and_the_server_goes_on(
    connect: Callable[[], socket.socket], head: bytes
) -> None:
    hostile = connect()
    hostile.sendall(head)
    try:
        status = answer_of(hostile)[9:12]
    except ConnectionResetError:
        status = b""
    assert status in (b"", b"400", b"401", b"408", b"413", b"414", b"431"), status
    honest = connect()
    honest.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer_of(honest).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("head", "status", "detail"),
    [
        (b"GET / HTTP/9.9\r\n\r\n", 400, "Invalid HTTP request"),
        (HEAD, 408, "within 0.3 s"),
        (HEAD + b"X: " + b"y" * 70_000, 431, "larger than 65536 bytes"),
    ],
)
def test_refusals_of_the_protocol_are_problems_too(
    connect: Callable[[], socket.socket], head: bytes, status: int, detail: str
) -> None:
    connection = connect()
    connection.sendall(head)
    try:
        fields, _, body = answer_of(connection).partition(b"\r\n\r\n")
    except ConnectionResetError:
        assert status == 431  # with what it has not read the server resets the connection
        return
    assert b"content-type: application/problem+json" in fields
    found = json.loads(body)
    assert found["status"] == status
    assert detail in found["detail"]


def test_a_client_that_reads_no_answers_cannot_queue_requests_without_end(
    connect: Callable[[], socket.socket],
) -> None:
    greedy = connect()
    greedy.settimeout(2)
    with pytest.raises(ConnectionError):  # else it times out, when 100,000 requests have been queued
        greedy.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000_000)


def test_few_pipelined_requests_are_answered_in_order(connect: Callable[[], socket.socket]) -> None:
    connection = connect()
    paths = [b"/health", b"/openapi.json"] * 20
    last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    connection.sendall(b"".join(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n" for path in paths) + last)
    answers = answer_of(connection)
    assert answers.count(b"HTTP/1.1 200 OK") == len(paths) + 1
    assert answers.rindex(b'"openapi"') < answers.rindex(b'"queue_size"')


def test_many_slow_clients_do_not_delay_others(connect: Callable[[], socket.socket]) -> None:
    slow = [connect() for _ in range(200)]
    for connection in slow:
        connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
    honest = connect()
    honest.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer_of(honest).startswith(b"HTTP/1.1 200")


def test_garbage_is_collected_while_the_server_runs(client: Any) -> None:
    bounded = Server(client.app, client.app.state.service)
    bounded.config.load()
    cycle: set[Any] = set()
    cycle.add(bounded_method := cycle.add)  # a cycle that reference counts do not free
    left = weakref.ref(cycle)
    gc.disable()
    try:
        del cycle, bounded_method
        assert asyncio.run(bounded.on_tick(1)) is False
        assert left() is not None
        assert asyncio.run(bounded.on_tick(server._TICKS_PER_COLLECTION)) is False
        assert left() is None
    finally:
        gc.enable()
