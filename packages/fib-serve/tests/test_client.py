"""Tests of the client against the API in this process, also over a network that fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fib_serve import Client, ServiceError, ServiceUnreachable
from fib_serve.database import Database, submissions
from fib_serve.settings import Settings
from sqlalchemy import func, select

from .samples import finish, make_definition, make_solution, make_workloads

ADDRESS = "http://testserver"
MakeToken = Callable[..., str]


class FailingNetwork(httpx.BaseTransport):
    """Delivers requests, and loses every answer before the given attempt.

    Args:
        below: A test client of the API; its own HTTP library may be another one.
        losses: The number of answers to lose.
        statuses: Statuses to answer instead, one for each of the next requests.
    """

    def __init__(self, below: Any, losses: int = 0, statuses: tuple[int, ...] = ()) -> None:
        self._below, self.losses, self._statuses = below, losses, list(statuses)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._statuses:
            return httpx.Response(self._statuses.pop(0), headers={"retry-after": "7"})
        headers = {name: value for name, value in request.headers.items() if name != "content-length"}
        answer = self._below.request(request.method, str(request.url), content=request.read(), headers=headers)
        if self.losses:
            self.losses -= 1
            raise httpx.ReadError("the answer was lost", request=request)
        kept = [(name, value) for name, value in answer.headers.multi_items() if name != "content-encoding"]
        return httpx.Response(answer.status_code, headers=kept, content=answer.content)


@pytest.fixture
def connect(client: Any, token: MakeToken) -> Callable[..., Client]:
    def make(
        losses: int = 0, statuses: tuple[int, ...] = (), sleep: Callable[[float], None] = lambda _: None
    ) -> Client:
        transport = FailingNetwork(client, losses, statuses)
        return Client(ADDRESS, token("alice"), transport=transport, sleep=sleep)

    return make


def test_a_submission_is_made_followed_and_read(
    connect: Callable[..., Client], database: Database, settings: Settings
) -> None:
    with connect() as client:
        made = client.submit(make_solution())
        assert (made.state, made.is_final, made.solution[:5]) == ("queued", False, "mine_")
        worker = threading.Thread(target=finish, args=(database, settings.dataset))
        worker.start()
        done = client.wait(made.id)
        worker.join()
        assert (done.state, done.verdict, done.score) == ("completed", "PASSED", 2.0)
        assert done.evaluated == 2
        assert [found.state for found in client.follow(made.id)] == ["completed"]
        assert [trace.workload for trace in client.traces(made.id)] == make_workloads()
        assert [entry.id for entry in client.leaderboard("double")] == [made.id]
        assert client.definition("double") == make_definition()
        assert client.quota()["used"]["day"] == 1


def test_a_submission_whose_answer_is_lost_is_made_once(connect: Callable[..., Client], database: Database) -> None:
    with connect(losses=3) as client:
        client.submit(make_solution(), force=True)
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(submissions)).scalar() == 1


def test_a_busy_service_is_asked_again_when_it_says(connect: Callable[..., Client]) -> None:
    pauses: list[float] = []
    with connect(statuses=(503, 429), sleep=pauses.append) as client:
        client.quota()
    assert pauses == [7.0, 7.0]


def test_a_service_that_stays_away_is_reported(connect: Callable[..., Client]) -> None:
    with connect(losses=100) as client, pytest.raises(ServiceUnreachable, match="the answer was lost; check"):
        client.quota()
    with connect(statuses=(503,) * 100) as client, pytest.raises(ServiceError, match="503"):
        client.quota()


def test_a_refusal_is_reported_with_its_detail(connect: Callable[..., Client]) -> None:
    with connect() as client:
        with pytest.raises(ServiceError, match="400 Bad Request: Definition not found: nope"):
            client.submit(make_solution(definition="nope"))
        with pytest.raises(ServiceError, match="no submission has the id"):
            client.get("0" * 32)
        with pytest.raises(ServiceError, match="404"):
            next(client.follow("0" * 32))


def test_a_submission_is_cancelled(connect: Callable[..., Client]) -> None:
    with connect() as client:
        made = client.submit(make_solution())
        assert client.cancel(made.id).state == "cancelled"
        assert client.wait(made.id).error == "cancelled before it was evaluated"
