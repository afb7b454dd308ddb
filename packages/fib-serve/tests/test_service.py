"""Tests of the whole service: real processes, solutions of strangers, hidden workloads, kills."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import httpx
import pytest
from fib_schema import TraceSet

from .running_service import (
    FAST,
    RunningService,
    create_token,
    follow,
    has_results,
    is_running,
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
def contest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contest]:
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


def test_an_honest_solution_ranks_and_a_wrong_one_does_not(contest: Contest) -> None:
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


def test_hidden_workloads_are_not_told_to_submitters(contest: Contest) -> None:
    identifier = submit(contest.alice, TELLS)
    wait(contest.alice, [identifier])
    texts = [
        contest.alice.get(path).text
        for path in (
            f"/tasks/{identifier}",
            f"/v1/submissions/{identifier}",
            f"/v1/submissions/{identifier}/traces",
            f"/submissions/{identifier}",
            "/v1/submissions",
            "/definitions/double/workloads",
        )
    ]
    for text in texts:
        assert re.search(r"\b(65537|131071)\b|secret|hidden shape is \(", text) is None
    found = contest.alice.get(f"/v1/submissions/{identifier}").json()
    assert found["verdict"] == "RUNTIME_ERROR"
    assert found["summary"]["hidden"] == {
        "verdict": "RUNTIME_ERROR",
        "speedup": None,
        "speedup_text": "-",
        "labels": [],
    }
    assert (found["passed"], found["evaluated"]) == (2, 2)
    traces = traces_by_submission(contest.hidden)
    assert {uuid for submission, uuid in traces if submission == identifier} == {"secret-65537", "secret-131071"}


REMEMBERS = """
import os
FOLDERS = [os.environ["FIB_CACHE_PATH"], os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))]
def run(x):
    for folder in FOLDERS:
        print("seen", sorted(name for name in os.listdir(folder) if name.startswith("rows-")), flush=True)
        open(f"{folder}/rows-{x.shape[0]}", "w").close()
    return x * 2
"""


def test_a_solution_tells_a_later_submission_nothing_of_hidden_workloads(contest: Contest) -> None:
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


def test_a_solution_reaches_neither_the_database_nor_other_data_nor_other_processes(contest: Contest) -> None:
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


def test_a_running_submission_is_cancelled_and_the_next_one_runs(contest: Contest) -> None:
    endless = submit(contest.alice, "def run(x):\n    while True: pass\n")
    follow(contest.alice, endless, is_running)
    following = submit(contest.bob, GOOD, name="next")
    assert contest.alice.delete(f"/v1/submissions/{endless}").status_code == 202
    wait(contest.bob, [following])
    assert contest.alice.get(f"/v1/submissions/{endless}").json()["state"] == "cancelled"


def test_killing_a_judge_loses_nothing_and_doubles_nothing(contest: Contest) -> None:
    identifiers = [submit(contest.alice, f"{GOOD}# {index}") for index in range(4)]
    follow(contest.alice, identifiers[0], has_results)
    os.kill(contest.service.judges()[0], signal.SIGKILL)
    tasks = wait(contest.alice, identifiers)
    assert [task["status"] for task in tasks] == ["completed"] * 4
    found = traces_by_submission(contest.data_set)
    assert {key: found[key] for key in found if key[0] in identifiers} == {
        (identifier, uuid): 1 for identifier in identifiers for uuid in ("double-4", "double-8")
    }


def test_killing_everything_loses_no_acknowledged_submission(tmp_path: Path) -> None:
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
        assert service.process.wait(60) == 0


def test_a_service_that_drains_finishes_and_leaves_no_process(tmp_path: Path) -> None:
    data_set = write_data_set(tmp_path / "data")
    mark = {"FIB_TEST_MARK": str(tmp_path)}
    with RunningService(data_set, "--no-auth", environment=mark) as service, service.client() as client:
        first, second = submit(client, GOOD), submit(client, f"{GOOD}#")
        follow(client, first, is_running)
        assert service.stop() == 0
    assert _processes_with(str(tmp_path)) == []
    with RunningService(data_set, "--no-auth") as service, service.client() as client:
        assert [task["status"] for task in wait(client, [first, second])] == ["completed"] * 2
        assert set(traces_by_submission(data_set).values()) == {1}


def _processes_with(text: str) -> list[str]:
    """The processes whose environment has a text; those that end meanwhile are waited for."""
    deadline = time.monotonic() + 20
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


def test_a_service_with_a_weak_sandbox_refuses_to_start(tmp_path: Path) -> None:
    data_set = write_data_set(tmp_path / "data")
    command = [sys.executable, "-m", "fib_serve.cli.main", "run", str(data_set), "--no-auth", "--port", "0", *FAST]
    environment = {**os.environ, "FIB_BENCH_ISOLATION": "1"}
    done = subprocess.run(
        [*command, "--devices", "cpu"], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "the sandbox reaches level 1 on this machine, required is 3" in done.stderr
    assert "--allow-isolation 1" in done.stderr


def test_private_files_that_workers_could_open_are_refused(tmp_path: Path) -> None:
    hidden = write_data_set(Path(sys.prefix) / f"hidden-{os.getpid()}", "secret")
    try:
        command = [sys.executable, "-m", "fib_serve.cli.main", "run", str(write_data_set(tmp_path / "data"))]
        options = ["--no-auth", "--port", "0", "--devices", "cpu", "--hidden", str(hidden)]
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 2
        assert f"workers could open {hidden}" in done.stderr
    finally:
        import shutil

        shutil.rmtree(hidden)


def test_a_second_service_on_the_same_state_is_refused(contest: Contest) -> None:
    command = [sys.executable, "-m", "fib_serve.cli.main", "run", str(contest.data_set), "--port", "0"]
    done = subprocess.run([*command, "--devices", "cpu"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "a service is running" in done.stderr
