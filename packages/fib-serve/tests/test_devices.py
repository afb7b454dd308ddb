"""Tests of devices: the table, what the API shows of it, and the worker of a device without a judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from fib_bench import IsolationReport
from fib_bench.errors import JudgeFailed
from fib_bench.events import Evaluated, Event
from fib_schema import Definition, Environment, Solution, Workload
from fib_serve.contest import DeviceState, DeviceTable
from fib_serve.database import Database
from fib_serve.device_worker import DeviceWorker
from fib_serve.errors import InvalidSetting, IsolationTooWeak
from fib_serve.judges import Judges
from fib_serve.queue import MAX_ATTEMPTS
from fib_serve.settings import Settings
from fib_serve.submissions import NewSubmission, State, get_submission, submit

from .conftest import make_contest
from .samples import bearer, make_solution, make_trace

ONE, OTHER = "host/00000001/gpu:0", "host/00000002/gpu:0"


def test_devices_in_use_have_the_same_hardware() -> None:
    table = DeviceTable()
    table.register(DeviceState(name=ONE, hardware="h100"))
    with pytest.raises(InvalidSetting, match=f"{OTHER} is 'h200' and {ONE} is 'h100'"):
        table.register(DeviceState(name=OTHER, hardware="h200"))
    table.exclude(ONE, "its node does not answer")
    table.register(DeviceState(name=OTHER, hardware="h200"))
    assert [state.name for state in table.in_use()] == [OTHER]
    table.remove(OTHER)
    table.register(DeviceState(name=ONE, hardware="h100"))
    assert [(state.name, state.problem) for state in table.all()] == [(ONE, None)]


def test_the_api_and_the_pages_show_why_a_device_is_not_used(client: Any, token: Callable[..., str]) -> None:
    headers, table = bearer(token("alice")), client.app.state.contest.devices
    table.exclude(ONE, "its sandbox reaches level <1>, required is 3")
    (device,) = client.get("/v1/devices", headers=headers).json()
    assert (device["name"], device["problem"][:11], device["submission_id"]) == (ONE, "its sandbox", None)
    assert client.get("/ready").status_code == 503
    assert client.get("/health").json()["workers"] == [{"device": ONE, "healthy": False}]
    page = client.get("/queue", headers=headers | {"Accept": "text/html"}).text
    assert "excluded: its sandbox reaches level &lt;1&gt;, required is 3" in page
    table.register(DeviceState(name=OTHER, hardware="cpu"))
    assert client.get("/ready").status_code == 200


class PlayedJudges(Judges):
    """Judges that pass every workload, or fail; the worker is drained after its last submission."""

    def __init__(self, failure: Exception | None = None, level: int = 3) -> None:
        super().__init__("cpu", {})
        self.failure, self.level = failure, level

    def probe(self, private: Sequence[Path]) -> IsolationReport:
        return IsolationReport(self.level, "", ())

    def environment(self, root: Path) -> Environment:
        return Environment("cpu")

    def run(
        self, root: Path, definition: Definition, solution: Solution, workloads: Sequence[Workload], cache_key: str
    ) -> Iterator[Event]:
        for workload in workloads:
            if self.failure is not None:
                raise self.failure
            yield Evaluated(make_trace(workload, solution.name))


def evaluate(settings: Settings, database: Database, judges: PlayedJudges, user: int) -> str:
    """Submit, and let a worker take it until it has ended; returns the id."""
    made, _ = submit(database, NewSubmission(user_id=user, solution=make_solution(), workloads=None, planned=2))
    contest = make_contest(settings, database)
    worker = DeviceWorker(contest, "cpu", judges)
    announce = contest.changes.announce

    def observe() -> None:
        announce()
        with database.read() as connection:
            found = get_submission(connection, made.id)
        if found is not None and found.state.is_final and not worker._is_draining.is_set():
            worker.drain()

    object.__setattr__(contest.changes, "announce", observe)
    worker.run()
    return made.id


def state_of(database: Database, identifier: str) -> tuple[State, str]:
    with database.read() as connection:
        found = get_submission(connection, identifier)
    assert found is not None
    return found.state, str(found.error)


def test_a_worker_records_what_its_judges_report(
    settings: Settings, database: Database, user_id: Callable[..., int]
) -> None:
    made = evaluate(settings, database, PlayedJudges(), user_id("alice"))
    with database.read() as connection:
        found = get_submission(connection, made)
    assert found is not None
    assert (found.state, found.verdict, found.passed, found.hardware) == (State.COMPLETED, "PASSED", 2, "cpu")


def test_a_submission_whose_judge_dies_is_tried_again_but_not_for_ever(
    settings: Settings, database: Database, user_id: Callable[..., int]
) -> None:
    state, error = state_of(database, evaluate(settings, database, PlayedJudges(JudgeFailed("signal")), user_id("a")))
    assert state is State.FAILED
    assert error.startswith(f"{MAX_ATTEMPTS} attempts failed, the last one because")


def test_a_weak_sandbox_ends_the_worker(settings: Settings, database: Database) -> None:
    with pytest.raises(IsolationTooWeak, match="level 1"):
        DeviceWorker(make_contest(settings, database), "cpu", PlayedJudges(level=1)).run()
    weak = attrs.evolve(settings, required_isolation=1)
    worker = DeviceWorker(make_contest(weak, database), "cpu", PlayedJudges(level=1))
    worker.drain()
    worker.run()
