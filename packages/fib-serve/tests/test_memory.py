"""Tests of memory that requests leave in the API process: garbage in cycles, and compiled statements."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest
from fastapi import FastAPI
from fib_serve.database import Database
from fib_serve.queue.leasing import claim
from fib_serve.queue.recording import Place, complete, record
from fib_serve.settings import Settings
from fib_serve.users.accounts import local_principal
from fib_serve.web.app import make_app
from fib_serve.web.state import Service
from sqlalchemy import event

from .samples import GOOD, make_definition, make_trace, make_workloads, plain_solution

REQUESTS = 20
MAX_GARBAGE = 5
"""Objects in cycles for each request. CPython may free them only when thousands have gathered."""
_NUMBERS = count()


@pytest.fixture
def app(database: Database, settings: Settings) -> Iterator[FastAPI]:
    """The API of a service without tokens."""
    open_settings = attrs.evolve(settings, has_auth=False, max_queued=100_000, max_per_day=100_000)
    local = local_principal(database, open_settings)
    service = Service.open(open_settings, database, local, lambda: None)
    yield make_app(service)
    service.changes._bell.close()
    service.workers.close()


@pytest.fixture
def ranked(app: FastAPI, database: Database, settings: Settings) -> list[str]:
    """Ids of submissions, of which each has a better score than the one before."""
    return [_evaluate(app, database, Path(settings.dataset), 1.0 + index) for index in range(3)]


def _evaluate(app: FastAPI, database: Database, data_set: Path, score: float) -> str:
    asyncio.run(post(app))
    lease = claim(database, "cpu", 60)
    assert lease is not None
    for workload in make_workloads():
        trace = make_trace(workload, lease.solution.name)
        record(database, lease, Place(data_set, is_hidden=False), make_definition(), trace)
    summary = {"public": {"speedup_text": f"{score:.2f}x", "latency_ms": [0.5, 1.5]}}
    values = {"verdict": "PASSED", "passed": 2, "is_ranked": True, "score": score, "summary": summary}
    complete(database, lease, values | {"hardware": "cpu", "harness": "1"})
    return lease.submission.id


async def call(app: FastAPI, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """Send a request without a client, whose own garbage would be counted; returns the status and the body."""
    messages: list[Any] = []
    arriving = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Any:
        return next(arriving, None) or await asyncio.Event().wait()

    async def send(message: Any) -> None:
        messages.append(message)

    path, _, query = path.partition("?")
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    addresses = {"client": ("127.0.0.1", 1), "server": ("x", 80), "scheme": "http", "root_path": ""}
    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", **addresses}
    scope |= {"method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode()}
    await app(scope | {"headers": headers}, receive, send)
    return messages[0]["status"], b"".join(message.get("body", b"") for message in messages[1:])


async def post(app: FastAPI) -> tuple[int, bytes]:
    """Submit a solution that was not submitted before."""
    solution = plain_solution(f"{GOOD}# {next(_NUMBERS)}\n")
    return await call(app, "POST", "/v1/submissions", json.dumps({"solution": solution}).encode())


async def post_and_cancel(app: FastAPI) -> tuple[int, bytes]:
    """Submit a solution and cancel it."""
    _, body = await post(app)
    return await call(app, "DELETE", f"/v1/submissions/{json.loads(body)['id']}")


def garbage_of(send: Callable[[], Awaitable[tuple[int, bytes]]], status: int) -> float:
    """The number of objects in unreachable cycles that a request leaves on average, in the best of three tries.

    Other code of the process leaves some now and then.
    """

    async def measure() -> int:
        for _ in range(3):  # what caches keep is made by the first ones
            assert (await send())[0] == status
        return min([await measure_once() for _ in range(3)])

    async def measure_once() -> int:
        gc.collect()
        gc.disable()
        try:
            for _ in range(REQUESTS):
                await send()
            return gc.collect()
        finally:
            gc.enable()

    return asyncio.run(measure()) / REQUESTS


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/health", 200),
        ("/ready", 503),
        ("/metrics", 200),
        ("/definitions/double", 200),
        ("/tasks/ID", 200),
        ("/tasks/ID?timeout=1", 200),
        ("/v1/submissions", 200),
        ("/v1/submissions?definition=double&state=completed&user=local", 200),
        ("/v1/submissions/ID", 200),
        ("/v1/submissions/ID/traces", 200),
        ("/v1/submissions/ID/solution", 200),
        ("/v1/submissions/ID/events", 200),
        ("/v1/leaderboards/double", 200),
        ("/v1/quota", 200),
        ("/v1/devices", 200),
        ("/leaderboard", 200),
        ("/leaderboard/double", 200),
        ("/submissions", 200),
        ("/submissions/ID", 200),
        ("/users/local", 200),
        ("/queue", 200),
        ("/feed.json", 200),
        ("/docs", 200),
        ("/nope", 404),
        ("/tasks/nope", 404),
        ("/v1/submissions/nope", 422),
        ("/submissions/nope", 404),
    ],
)
def test_reading_leaves_no_garbage(app: FastAPI, ranked: list[str], path: str, status: int) -> None:
    found = garbage_of(lambda: call(app, "GET", path.replace("ID", ranked[-1])), status)
    assert found < MAX_GARBAGE


@pytest.mark.parametrize(("send", "status"), [(post, 201), (post_and_cancel, 202)])
def test_submitting_leaves_no_garbage(app: FastAPI, send: Callable[..., Any], status: int) -> None:
    assert garbage_of(lambda: send(app), status) < MAX_GARBAGE


def test_a_repeated_or_refused_submission_leaves_no_garbage(app: FastAPI, ranked: list[str]) -> None:
    body = json.dumps({"solution": plain_solution(f"{GOOD}# again\n")}).encode()
    assert asyncio.run(call(app, "POST", "/v1/submissions", body))[0] == 201
    assert garbage_of(lambda: call(app, "POST", "/v1/submissions", body), 200) < MAX_GARBAGE
    assert garbage_of(lambda: call(app, "POST", "/v1/submissions", b"{}"), 422) < MAX_GARBAGE
    assert garbage_of(lambda: call(app, "DELETE", f"/v1/submissions/{ranked[0]}"), 409) < MAX_GARBAGE


@pytest.mark.parametrize("path", ["/leaderboard/double", "/feed.json", "/v1/leaderboards/double"])
def test_statements_do_not_depend_on_the_number_of_records(
    app: FastAPI, ranked: list[str], database: Database, settings: Settings, path: str
) -> None:
    """Each connection of SQLite keeps compiled statements, 20 KiB for a query of submissions, by their text."""
    texts: set[str] = set()
    event.listen(database._engine, "before_cursor_execute", lambda *arguments: texts.add(arguments[2]))
    asyncio.run(call(app, "GET", path))
    before = set(texts)
    for score in (10.0, 11.0):
        _evaluate(app, database, Path(settings.dataset), score)
    texts.clear()
    assert asyncio.run(call(app, "GET", path))[0] == 200
    assert texts <= before
