"""Submission to a service over HTTP, with a server in the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from fib_agents.service import ServiceFailed, submit_to_service
from fib_schema import BuildSpec, Solution, SourceFile

SOLUTION = Solution("mine", "d", "me", BuildSpec("python", ("cpu",), "k.py::run"), (SourceFile("k.py", "x = 1\n"),))
TRACE = {"workload": {"uuid": "w1"}, "evaluation": {"status": "PASSED", "performance": {"latency_ms": 0.5}}}
Answer = Callable[[str, str, dict[str, str], Any], tuple[int, bytes]]


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, data = answer(self.command, self.path, dict(self.headers), body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _answer  # noqa: N815 - the base class calls them so

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_solution_is_sent_and_its_result_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIB_SERVE_TOKEN", "secret-token")
    seen: list[tuple[str, str]] = []

    def answer(method: str, path: str, headers: dict[str, str], body: Any) -> tuple[int, bytes]:
        seen.append((method, path.partition("?")[0]))
        assert headers["Authorization"] == "Bearer secret-token"
        if method == "POST":
            assert body["solution"]["name"] == "mine"
            return 200, json.dumps({"task_id": "t/1", "normalized_solution_name": "mine_2"}).encode()
        status = "running" if len(seen) < 3 else "completed"
        return 200, json.dumps({"task_id": "t/1", "status": status, "traces": [TRACE]}).encode()

    with serving(answer) as url:
        result = submit_to_service(url, SOLUTION)
    assert seen == [("POST", "/evaluate"), ("GET", "/tasks/t%2F1"), ("GET", "/tasks/t%2F1")]
    assert (result.solution, result.status, result.results) == ("mine_2", "completed", (("w1", "PASSED", 0.5),))
    assert "w1: PASSED 0.5 ms" in result.to_text()


@pytest.mark.parametrize(
    ("status", "data", "said"),
    [
        (400, b"unknown definition", "status 400: unknown definition"),
        (200, b"no json", "/evaluate"),
        (200, b"[]", "not a JSON object"),
        (200, b"{}", "no task_id"),
    ],
)
def test_a_service_that_refuses_or_errs_is_named(status: int, data: bytes, said: str) -> None:
    with serving(lambda *_: (status, data)) as url, pytest.raises(ServiceFailed, match=said):
        submit_to_service(url, SOLUTION)


def test_strange_traces_do_not_raise() -> None:
    def answer(method: str, *_: Any) -> tuple[int, bytes]:
        if method == "POST":
            return 200, b'{"task_id": "t"}'
        return 200, b'{"status": "failed", "traces": [3, {"workload": 1, "evaluation": []}], "error": "\\u001b[2J| x"}'

    with serving(answer) as url:
        result = submit_to_service(url, SOLUTION)
    assert result.status == "failed"
    assert "\x1b" not in result.to_text()


def test_a_service_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ServiceFailed, match=r"http://127\.0\.0\.1:9: does not answer: .*; check the address"):
        submit_to_service("http://127.0.0.1:9", SOLUTION)
    with pytest.raises(ServiceFailed, match="begins with http"):
        submit_to_service("file:///etc/passwd", SOLUTION)
