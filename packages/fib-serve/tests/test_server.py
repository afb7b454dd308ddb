"""Tests of the web server: malformed requests, and headers of a reverse proxy."""

import socket
import subprocess
import sys
import threading

import attrs
import httpx
import pytest
from fib_serve.service import make_server
from fib_serve.users import Role
from fib_serve.web import app

from .conftest import make_contest

HEAD = b"POST /v1/submissions HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def serve(database, settings):
    """Starts a server with changed settings; returns its port."""
    started = []

    def start(**changes):
        contest = make_contest(attrs.evolve(settings, **changes), database)
        server = make_server(contest)
        listener = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, args=[[listener]])
        thread.start()
        started.append((server, thread))
        return int(listener.getsockname()[1])

    yield start
    for server, thread in started:
        server.should_exit = server.force_exit = True
        thread.join()


def answer_to(port, request):
    """The beginning of the answer; empty if the server resets the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        try:
            connection.sendall(request)
            return connection.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            return b""


def test_malformed_requests_are_refused_and_the_server_goes_on(serve):
    port = serve()
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
    for head in (
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        HEAD + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /\r\n\r\n",
    ):
        assert answer_to(port, head)[9:12] in (b"", b"400", b"401", b"404", b"413", b"422", b"431"), head[:60]
        assert client.get("/health").status_code == 200
    client.close()


def test_the_service_imports_no_torch():
    """Solutions run in other processes, and importing torch takes seconds."""
    code = "import sys, fib_serve.service; print({'torch', 'triton'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_body_that_does_not_arrive_is_answered(serve, token, monkeypatch):
    monkeypatch.setattr(app, "_BODY_SECONDS", 0.3)
    head = HEAD + f"Authorization: Bearer {token('alice')}\r\n".encode()
    slow = head + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    assert answer_to(serve(), slow).startswith(b"HTTP/1.1 408")


def test_no_body_is_read_without_a_token(serve):
    port, begun = serve(), b"Content-Type: application/json\r\nContent-Length: 4000000\r\n\r\n{"
    assert answer_to(port, HEAD + begun).startswith(b"HTTP/1.1 401")
    form = b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n" + b"a" * 20_000
    assert answer_to(port, form).startswith(b"HTTP/1.1 413")


def test_large_bodies_of_one_user_are_read_two_at_a_time(serve, token):
    port, text = serve(), token("alice")
    large = f"Authorization: Bearer {text}\r\nExpect: 100-continue\r\nContent-Length: 4000000\r\n\r\n".encode()
    reading = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(2)]
    for connection in reading:
        connection.sendall(HEAD + large)
        assert connection.recv(65536).startswith(b"HTTP/1.1 100"), "the server asks for the body"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as third:
        third.sendall(HEAD + large)
        headers = {"Authorization": f"Bearer {text}"}
        small = httpx.post(f"http://127.0.0.1:{port}/tasks/batch", json={"task_ids": []}, headers=headers, timeout=60)
        assert small.status_code == 200, "small bodies do not wait"
        third.setblocking(False)
        with pytest.raises(BlockingIOError):
            third.recv(1)
        third.settimeout(60)
        reading[0].close()
        assert third.recv(65536).startswith(b"HTTP/1.1 100")
    reading[1].close()


@pytest.mark.parametrize(("proxy", "is_trusted"), [(None, False), ("127.0.0.1", True), ("10.0.0.1", False)])
@pytest.mark.slow
def test_headers_of_the_named_proxy_alone_are_trusted(serve, token, proxy, is_trusted, caplog):
    headers = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https"}
    with httpx.Client(base_url=f"http://127.0.0.1:{serve(proxy=proxy)}", headers=headers, timeout=60) as client:
        answer = client.post("/login", data={"token": token("alice")})
        assert ("; secure" in answer.headers["set-cookie"].lower()) == is_trusted
        client.cookies.clear()
        client.post("/shutdown", headers={"Authorization": f"Bearer {token('root', Role.MAINTAINER)}"})
    assert ("at 192.0.2.7" in caplog.text, "at 127.0.0.1" in caplog.text) == (is_trusted, not is_trusted)
