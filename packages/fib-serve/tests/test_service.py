"""Tests of the whole service: real processes, solutions of strangers, hidden workloads, kills."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import attrs
import httpx
import pytest
from fib_schema import TraceSet
from fib_serve.queue import WITHDRAWN

from .running_service import (
    FAST,
    START_SECONDS,
    RunningService,
    create_token,
    follow,
    has_begun,
    has_results,
    submit,
    traces_by_submission,
    wait,
)
from .samples import GOOD, WRONG, write_data_set

pytestmark = pytest.mark.slow


@attrs.frozen
class Contest:
    service: RunningService
    data_set: Path
    hidden: Path
    alice: httpx.Client
    bob: httpx.Client
    root: httpx.Client


@pytest.fixture(scope="module")
def contest(tmp_path_factory):
    """A contest with hidden workloads and three users."""
    folder = tmp_path_factory.mktemp("contest")
    data_set = write_data_set(folder / "data")
    hidden = write_data_set(folder / "hidden", "secret", (65537, 131071))
    tokens = [create_token(data_set, "alice"), create_token(data_set, "bob")]
    tokens.append(create_token(data_set, "root", "maintainer"))
    with RunningService(data_set, "--hidden", str(hidden), "--max-running", "1") as service:
        clients = [service.client(token) for token in tokens]
        yield Contest(service, data_set, hidden, *clients)
        for client in clients:
            client.close()


def test_an_honest_solution_ranks_and_a_wrong_one_does_not(contest):
    good, wrong = submit(contest.alice, GOOD), submit(contest.bob, WRONG, name="his")
    tasks = wait(contest.alice, [good])
    assert [trace["evaluation"]["status"] for trace in tasks[0]["traces"]] == ["PASSED"] * 2
    wait(contest.bob, [wrong])
    found = contest.bob.get(f"/v1/submissions/{wrong}").json()
    assert (found["state"], found["verdict"], found["is_ranked"]) == ("completed", "INCORRECT_NUMERICAL", False)
    assert contest.bob.get(f"/v1/submissions/{good}").json()["is_ranked"]
    board = contest.bob.get("/v1/leaderboards/double").json()["items"]
    assert "alice" in [item["submission"]["user"] for item in board]
    assert wrong not in [item["submission"]["id"] for item in board]
    trace_set = TraceSet.from_path(contest.data_set)
    assert trace_set.all_problems() == ()
    assert {solution.author for solution in trace_set.solutions["double"]} == {"alice", "bob"}


TELLS = """
import sys
def run(x):
    print("shape", tuple(x.shape), flush=True)
    if x.shape[0] > 100:
        raise RuntimeError(f"the hidden shape is {tuple(x.shape)}, values {x[:3].tolist()}")
    return x * 2
"""


def test_hidden_workloads_are_not_told_to_submitters(contest):
    identifier = submit(contest.alice, TELLS)
    wait(contest.alice, [identifier])
    own = [f"/tasks/{identifier}", *(f"{root}/submissions/{identifier}" for root in ("", "/v1"))]
    paths = (*own, f"/v1/submissions/{identifier}/traces", "/submissions", "/definitions/double/workloads")
    for text in [contest.alice.get(path).text for path in paths]:
        assert re.search(r"\b(65537|131071)\b|secret|hidden shape is \(", text) is None
    found = contest.alice.get(f"/v1/submissions/{identifier}").json()
    assert found["verdict"] == "RUNTIME_ERROR"
    assert found["summary"]["hidden"] == {"verdict": "RUNTIME_ERROR", "speedup_text": "-"}
    assert (found["passed"], found["evaluated"]) == (2, 2)
    traces = traces_by_submission(contest.hidden)
    assert {uuid for submission, uuid in traces if submission == identifier} == {"secret-65537", "secret-131071"}
    assert WITHDRAWN in "".join(path.read_text() for path in contest.data_set.glob("traces/**/*.jsonl"))


REMEMBERS = """
import os
FOLDERS = [os.environ["FIB_CACHE_PATH"], os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))]
def run(x):
    for folder in FOLDERS:
        print("seen", sorted(name for name in os.listdir(folder) if name.startswith("rows-")), flush=True)
        open(f"{folder}/rows-{x.shape[0]}", "w").close()
    return x * 2
"""


def test_a_solution_tells_a_later_submission_nothing_of_hidden_workloads(contest):
    for _ in range(2):
        identifier = submit(contest.bob, REMEMBERS, name="remembers")
        (task,) = wait(contest.bob, [identifier])
        logs = [trace["evaluation"]["log"] for trace in task["traces"]]
        assert [trace["evaluation"]["status"] for trace in task["traces"]] == ["PASSED"] * 2, logs
        assert "rows-8" in logs[1]  # it does see what it has stored in the same evaluation
        assert not re.search(r"rows-(65537|131071)", "".join(logs))


SPY = """
import os
FOUND = []
for path in {paths!r}:
    try:
        FOUND.append((path, os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(100)))
    except OSError:
        pass
def descriptors(pid):
    try:
        return [f"fd/{{name}}" for name in os.listdir(f"/proc/{{pid}}/fd")]
    except OSError:
        return []
try:
    FOUND.append(os.listdir("/proc"))
except OSError:
    pass
for pid in {pids!r}:
    for name in ("cmdline", "environ", "mem", "status", *descriptors(pid)):
        try:
            open(f"/proc/{{pid}}/{{name}}", "rb")
            FOUND.append(f"/proc/{{pid}}/{{name}}")
        except OSError:
            pass
def run(x):
    if FOUND:
        raise RuntimeError(f"FOUND {{FOUND}}")
    return x * 2
"""


def test_a_solution_reaches_neither_the_database_nor_other_data_nor_other_processes(contest):
    state = contest.data_set.with_name(f"{contest.data_set.name}.fib-serve")
    paths = [state, state / "serve.sqlite3", contest.data_set, contest.hidden, Path.home(), Path.cwd()]
    paths += [*contest.data_set.glob("solutions/**/*.json"), *contest.hidden.glob("workloads/**/*.jsonl")]
    pids = [1, os.getpid(), contest.service.process.pid, *contest.service.judges()]
    identifier = submit(contest.bob, SPY.format(paths=[str(path) for path in paths], pids=pids), name="spy")
    (task,) = wait(contest.bob, [identifier])
    assert [trace["evaluation"]["status"] for trace in task["traces"]] == ["PASSED"] * 2, task["traces"][0][
        "evaluation"
    ]["log"]
    levels = [trace["evaluation"]["extra"]["isolation"]["level"] for trace in task["traces"]]
    assert levels == [3, 3]


def test_a_submission_that_takes_too_long_ends_and_the_next_one_begins(tmp_path):
    data_set = write_data_set(tmp_path / "data")
    with RunningService(data_set, "--no-auth", "--submission-seconds", "5") as service, service.client() as client:
        (task,) = wait(client, [submit(client, "def run(x):\n    while True: pass\n")])
        assert "took more than 5 s" in task["error"]
        follow(client, submit(client, GOOD), has_begun)


def test_killing_a_judge_loses_nothing_and_doubles_nothing(contest):
    identifiers = [submit(contest.alice, f"{GOOD}# {index}") for index in range(4)]
    follow(contest.alice, identifiers[0], has_results)
    os.kill(contest.service.judges()[0], signal.SIGKILL)
    tasks = wait(contest.alice, identifiers)
    assert [task["status"] for task in tasks] == ["completed"] * 4
    found = traces_by_submission(contest.data_set)
    assert {key: found[key] for key in found if key[0] in identifiers} == {
        (identifier, uuid): 1 for identifier in identifiers for uuid in ("double-4", "double-8")
    }


def test_killing_everything_loses_no_acknowledged_submission(tmp_path):
    data_set = write_data_set(tmp_path / "data")
    with RunningService(data_set, "--no-auth") as service:
        with service.client() as client:
            identifiers = [submit(client, f"{GOOD}# {index}") for index in range(5)]
        service.kill()
    with RunningService(data_set, "--no-auth") as service, service.client() as client:
        tasks = wait(client, identifiers)
        assert [task["status"] for task in tasks] == ["completed"] * 5
        assert set(traces_by_submission(data_set).values()) == {1}
        assert len(traces_by_submission(data_set)) == 10
        assert client.post("/shutdown").json() == {"status": "shutting down"}
        assert service.process.wait(START_SECONDS) == 0


def test_a_service_that_drains_finishes_and_leaves_no_process(tmp_path):
    data_set = write_data_set(tmp_path / "data")
    mark = {"FIB_TEST_MARK": str(tmp_path)}
    with RunningService(data_set, "--no-auth", environment=mark) as service, service.client() as client:
        first, second = submit(client, GOOD), submit(client, f"{GOOD}#")
        follow(client, first, has_begun)
        assert service.stop() == 0
    assert _processes_with(str(tmp_path)) == []
    with RunningService(data_set, "--no-auth") as service, service.client() as client:
        assert [task["status"] for task in wait(client, [first, second])] == ["completed"] * 2
        assert set(traces_by_submission(data_set).values()) == {1}


def _processes_with(text):
    """The processes whose environment has a text; those that end meanwhile are waited for."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if text in path.read_text(errors="replace"):
                    found.append(path.parent.name)
            except OSError:
                continue
        if not found or time.monotonic() > deadline:
            return found
        os.sched_yield()


def test_a_service_with_a_weak_sandbox_refuses_to_start(tmp_path):
    data_set = write_data_set(tmp_path / "data")
    command = [sys.executable, "-m", "fib_serve.cli.main", "run", str(data_set), "--no-auth", "--port", "0", *FAST]
    environment = {**os.environ, "FIB_BENCH_ISOLATION": "1"}
    done = subprocess.run([*command, "--devices", "cpu"], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert "the sandbox reaches level 1 on this machine, required is 3" in done.stderr
    assert "--allow-isolation 1" in done.stderr


def test_private_files_that_workers_could_open_are_refused(tmp_path):
    hidden = write_data_set(Path(sys.prefix) / f"hidden-{os.getpid()}", "secret")
    try:
        command = [sys.executable, "-m", "fib_serve.cli.main", "run", str(write_data_set(tmp_path / "data"))]
        options = ["--no-auth", "--port", "0", "--devices", "cpu", "--hidden", str(hidden)]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert f"workers could open {hidden}" in done.stderr
    finally:
        import shutil

        shutil.rmtree(hidden)


def test_a_second_service_on_the_same_state_is_refused(contest):
    command = [sys.executable, "-m", "fib_serve.cli.main", "run", str(contest.data_set), "--port", "0"]
    done = subprocess.run([*command, "--devices", "cpu"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "a service is running" in done.stderr
