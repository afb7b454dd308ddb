"""Tests of devices: the table, what the API shows of it, and the worker of a device without a judge."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from fib_bench import IsolationReport
from fib_bench.errors import JudgeFailed
from fib_bench.events import Evaluated, Event
from fib_schema import Definition, Environment, Solution, Workload
from fib_serve.contest import Contest, DeviceState, DeviceTable
from fib_serve.database import Database
from fib_serve.device_worker import DeviceWorker
from fib_serve.errors import InvalidSetting, IsolationTooWeak
from fib_serve.judges import Judges
from fib_serve.queue import MAX_ATTEMPTS
from fib_serve.settings import Settings
from fib_serve.submissions import NewSubmission, State, Submission, cancel, submit

from .conftest import make_contest
from .samples import GOOD, WRONG, bearer, make_solution, make_trace, read

ONE, OTHER = "host/00000001/gpu:0", "host/00000002/gpu:0"


def test_devices_in_use_have_the_same_hardware() -> None:
    table = DeviceTable()
    table.register(DeviceState(name=ONE, hardware="h100"))
    with pytest.raises(InvalidSetting, match=f"{OTHER} is 'h200' and {ONE} is 'h100'"):
        table.register(DeviceState(name=OTHER, hardware="h200"))
    table.change(ONE, problem="its node does not answer")
    table.register(DeviceState(name=OTHER, hardware="h200"))
    assert [state.name for state in table.in_use()] == [OTHER]
    table.remove(OTHER)
    table.register(DeviceState(name=ONE, hardware="h100"))
    assert [(state.name, state.problem) for state in table.all()] == [(ONE, None)]


def test_the_api_and_the_pages_show_why_a_device_is_not_used(client: Any, token: Callable[..., str]) -> None:
    headers, table = bearer(token("alice")), client.app.state.contest.devices
    table.change(ONE, problem="its sandbox reaches level <1>, required is 3")
    (device,) = client.get("/v1/devices", headers=headers).json()
    assert (device["name"], device["problem"][:11], device["submission_id"]) == (ONE, "its sandbox", None)
    assert client.get("/ready").status_code == 503
    assert client.get("/health").json()["workers"] == [{"device": ONE, "healthy": False}]
    page = client.get("/queue", headers=headers | {"Accept": "text/html"}).text
    assert "excluded: its sandbox reaches level &lt;1&gt;, required is 3" in page
    table.register(DeviceState(name=OTHER, hardware="cpu"))
    assert client.get("/ready").status_code == 200


class PlayedJudges(Judges):
    """Judges that pass every workload, fail, or take until they are interrupted."""

    def __init__(self, failure: Exception | None = None, level: int = 3, *, is_endless: bool = False) -> None:
        super().__init__("cpu", {})
        self.failure, self.level, self.is_endless = failure, level, is_endless
        self.interrupted = threading.Event()

    def probe(self, private: Sequence[Path]) -> IsolationReport:
        return IsolationReport(self.level, "", ())

    def environment(self, root: Path) -> Environment:
        return Environment("cpu")

    def interrupt(self) -> None:
        self.interrupted.set()

    def run(
        self, root: Path, definition: Definition, solution: Solution, workloads: Sequence[Workload], cache_key: str
    ) -> Iterator[Event]:
        for workload in workloads:
            if self.failure is not None:
                raise self.failure
            if self.is_endless and self.interrupted.wait(60):
                raise JudgeFailed("it was interrupted")
            yield Evaluated(make_trace(workload, solution.name))


@contextmanager
def working(contest: Contest, judges: PlayedJudges) -> Iterator[None]:
    worker = DeviceWorker(contest, "cpu", judges)
    contest.interrupt = worker.interrupt
    worker.start()
    yield
    worker.drain()
    worker.drain()
    while worker.is_running:
        time.sleep(0.01)


def until(database: Database, identifier: str, is_enough: Callable[[Submission], bool]) -> Submission:
    deadline = time.monotonic() + 60
    while not is_enough(found := read(database, identifier)):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


@pytest.mark.parametrize(
    ("judges", "state", "error"),
    [
        (PlayedJudges(), State.COMPLETED, "None"),
        (PlayedJudges(JudgeFailed("signal")), State.FAILED, f"{MAX_ATTEMPTS} attempts failed, the last one because"),
        (PlayedJudges(is_endless=True), State.FAILED, "its evaluation took more than 0.2 s, the limit"),
    ],
    ids=["passes", "dies", "takes too long"],
)
def test_a_submission_ends(
    settings: Settings,
    database: Database,
    user_id: Callable[..., int],
    judges: PlayedJudges,
    state: State,
    error: str,
) -> None:
    made = enter(database, user_id("alice"))
    with working(make_contest(attrs.evolve(settings, submission_seconds=0.2), database), judges):
        found = until(database, made, lambda found: found.state.is_final)
    assert found.state is state
    assert str(found.error).startswith(error)
    assert (found.verdict, found.passed) == (("PASSED", 2) if state is State.COMPLETED else (None, 0))


def test_a_running_submission_that_is_cancelled_makes_room_for_the_next_one(
    settings: Settings, database: Database, user_id: Callable[..., int]
) -> None:
    alice, judges, contest = user_id("alice"), PlayedJudges(is_endless=True), make_contest(settings, database)
    first, second = enter(database, alice), enter(database, alice, WRONG)
    with working(contest, judges):
        until(database, first, lambda found: found.state is State.RUNNING)
        assert cancel(database, first) is State.RUNNING
        judges.is_endless = False
        contest.interrupt(first)
        until(database, second, lambda found: found.state is State.COMPLETED)
    assert read(database, first).state is State.CANCELLED


def enter(database: Database, user: int, source: str = GOOD) -> str:
    new = NewSubmission(user_id=user, solution=make_solution(source).with_unique_name(), workloads=None, planned=2)
    return submit(database, new)[0].id


def test_a_weak_sandbox_ends_the_worker(settings: Settings, database: Database) -> None:
    with pytest.raises(IsolationTooWeak, match="level 1"):
        DeviceWorker(make_contest(settings, database), "cpu", PlayedJudges(level=1)).run()
    weak = attrs.evolve(settings, required_isolation=1)
    worker = DeviceWorker(make_contest(weak, database), "cpu", PlayedJudges(level=1))
    worker.drain()
    worker.run()
