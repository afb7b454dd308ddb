"""Tests of devices: the table, what the API shows of it, and the worker of a device without a judge."""

import threading
import time
from contextlib import contextmanager

import attrs
import pytest
from fib_bench import IsolationReport
from fib_bench.errors import JudgeFailed
from fib_bench.events import Evaluated, Skipped
from fib_bench.plan import Skip
from fib_schema import Environment
from fib_serve.contest import DeviceState, DeviceTable
from fib_serve.database import State
from fib_serve.device_worker import DeviceWorker
from fib_serve.errors import InvalidSetting, IsolationTooWeak
from fib_serve.judges import Judges
from fib_serve.queue import MAX_ATTEMPTS
from fib_serve.submissions import remove_user, submit

from .conftest import make_contest
from .samples import bearer, make_trace, new_submission, read

CRASH = Skipped(Skip("double", None, None, "signal", is_crash=True), 1)
ONE, OTHER = "host/00000001/gpu:0", "host/00000002/gpu:0"


def test_devices_in_use_have_the_same_hardware():
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


def test_the_api_and_the_pages_show_why_a_device_is_not_used(client, token):
    headers, table = bearer(token("alice")), client.app.state.contest.devices
    table.change(ONE, problem="its sandbox reaches level <1>, required is 3")
    (device,) = client.get("/v1/devices", headers=headers).json()
    assert (device["name"], device["problem"][:11], device["submission_id"]) == (ONE, "its sandbox", None)
    assert client.get("/ready").status_code == 503
    assert client.get("/health").json()["workers"] == [{"device": ONE, "healthy": False}]
    page = client.get("/submissions", headers=headers | {"Accept": "text/html"}).text
    assert "excluded: its sandbox reaches level &lt;1&gt;, required is 3" in page
    table.register(DeviceState(name=OTHER, hardware="cpu"))
    assert client.get("/ready").status_code == 200


class PlayedJudges(Judges):
    """Judges that pass every workload, fail, or take until they are interrupted."""

    def __init__(self, failure=None, level=3, *, is_endless=False):
        super().__init__("cpu", {})
        self.failure, self.level, self.is_endless = failure, level, is_endless
        self.interrupted = threading.Event()

    def probe(self, private):
        return IsolationReport(self.level, "", ())

    def environment(self, root):
        return Environment("cpu")

    def interrupt(self):
        self.interrupted.set()

    def run(self, root, definition, solution, workloads, cache_key):
        for workload in workloads:
            if isinstance(self.failure, Skipped):
                yield self.failure
                continue
            if self.failure is not None:
                raise self.failure
            if self.is_endless and self.interrupted.wait(60):
                raise JudgeFailed("it was interrupted")
            yield Evaluated(make_trace(workload, solution.name))


@contextmanager
def working(contest, judges):
    worker = DeviceWorker(contest, "cpu", judges)
    worker.start()
    yield
    worker.drain()
    worker.drain()
    while worker.is_running:
        time.sleep(0.01)


def until(database, identifier, is_enough):
    deadline = time.monotonic() + 60
    while not is_enough(found := read(database, identifier)):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


@pytest.mark.parametrize(
    ("judges", "state", "error"),
    [
        (PlayedJudges(), State.COMPLETED, "None"),
        (PlayedJudges(CRASH), State.FAILED, f"{MAX_ATTEMPTS} attempts failed, the last one because"),
        (PlayedJudges(JudgeFailed("signal")), State.FAILED, f"{MAX_ATTEMPTS} attempts failed, the last one because"),
        (PlayedJudges(is_endless=True), State.FAILED, "its evaluation took more than 0.2 s, the limit"),
        (PlayedJudges(is_endless=True), State.FAILED, "rejected: copied"),
    ],
    ids=["passes", "loses a judge", "dies", "takes too long", "is of a user who is removed"],
)
def test_a_submission_ends(settings, database, user_id, judges, state, error, caplog):
    caplog.set_level("INFO")
    made = submit(database, settings, new_submission(user_id("alice")))[0].id
    if "took more" in error:  # the others end by themselves, however busy the machine is
        settings = attrs.evolve(settings, submission_seconds=0.2)
    with working(make_contest(settings, database), judges):
        if "rejected" in error:
            until(database, made, lambda found: found.state is State.RUNNING)
            with database.write() as connection:
                remove_user(connection, "alice", "copied")
        found = until(database, made, lambda found: found.state.is_final)
        assert not judges.is_endless or judges.interrupted.wait(60), "the device is free for others"
    assert found.state is state
    assert str(found.error).startswith(error)
    assert f"submission {made}" in caplog.text
    assert (found.verdict, found.passed) == (("PASSED", 2) if state is State.COMPLETED else (None, 0))


def test_a_weak_sandbox_ends_the_worker(settings, database):
    with pytest.raises(IsolationTooWeak, match="level 1"):
        DeviceWorker(make_contest(settings, database), "cpu", PlayedJudges(level=1)).run()
    weak = attrs.evolve(settings, required_isolation=1)
    worker = DeviceWorker(make_contest(weak, database), "cpu", PlayedJudges(level=1))
    worker.drain()
    worker.run()
