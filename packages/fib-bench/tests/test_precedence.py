"""What is measured on the CPU goes first: threads that are there and those that come, and the session."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fib_bench.worker.cpu_priority import Precedence
from fib_schema import Definition, Evaluation, Solution, Workload

CODE = """
import sys, threading, time
def rest():
    time.sleep(60)
threading.Thread(target=rest, daemon=True).start()
print(flush=True)
sys.stdin.readline()
threading.Thread(target=rest, daemon=True).start()
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    """A session of its own, which has two threads, and a third one when it is told so."""
    command = [sys.executable, "-c", CODE]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def start_thread(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(file=worker.stdin, flush=True)
    worker.stdout.readline()


CHURNING = """
import threading, time
for _ in range(10):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    threading.Thread(target=int).start()
"""


TELLING = """
import os
before = None
def run(x):
    global before
    now = os.getpriority(os.PRIO_PROCESS, 0)
    if now != before:
        before = now
        print(now, flush=True)
    return x * 2
"""


def refuse(*_: object) -> None:
    raise PermissionError


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def niceness(pid: int) -> list[int]:
    """Of all threads that there are."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended
            found.append(os.getpriority(os.PRIO_PROCESS, int(task.name)))
    return found


def may_go_first() -> bool:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            os.setpriority(os.PRIO_PROCESS, process.pid, -20)
        except OSError:
            return False
        finally:
            process.kill()
    return True


@pytest.mark.skipif(not may_go_first(), reason="needs the privilege to raise priorities")
class TestWithThePrivilege:
    def test_all_threads_go_first_until_it_is_given_back(self, worker: subprocess.Popen[str]) -> None:
        before = niceness(worker.pid)
        precedence = Precedence(worker.pid)
        precedence.take()
        precedence.take()
        assert niceness(worker.pid) == [-20, -20]
        start_thread(worker)
        assert niceness(worker.pid) == [-20, -20, -20]
        precedence.give_back()
        assert niceness(worker.pid) == [*before, before[0]]

    def test_threads_that_come_and_go_hide_no_others(self, worker: subprocess.Popen[str]) -> None:
        command = [sys.executable, "-c", CHURNING]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            precedence = Precedence(process.pid)
            found = []
            for _ in range(30):
                precedence.take()
                found.append(set(niceness(process.pid)))
                precedence.give_back()
                found.append(set(niceness(process.pid)))
            process.kill()
        assert found == [{-20}, {0}] * 30

    def test_children_lose_their_place_as_well(self, worker: subprocess.Popen[str]) -> None:
        precedence = Precedence(worker.pid)
        precedence.take()
        command = ["nice", "-n", "-20", "sleep", "60"]
        with subprocess.Popen(command) as child:
            wait_for(lambda: niceness(child.pid) == [-20])
            precedence.give_back([child.pid])
            found = niceness(child.pid)
            child.kill()
        assert found == niceness(worker.pid)[:1]

    def test_a_place_that_could_not_be_given_back_does_not_become_the_usual_one(
        self, worker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        precedence = Precedence(worker.pid)
        with monkeypatch.context() as patch:
            precedence.take()
            patch.setattr(os, "setpriority", refuse)
            precedence.give_back()
        precedence.take()
        precedence.give_back()
        assert set(niceness(worker.pid)) == {0}

    def test_so_does_the_session_where_sessions_take_turns(self, worker: subprocess.Popen[str]) -> None:
        session = Path(f"/proc/{worker.pid}/autogroup")
        if not session.exists():
            pytest.skip("this system does not group by session")
        precedence = Precedence(worker.pid)
        precedence.take()
        assert session.read_text().endswith(" nice -20\n")
        precedence.give_back()
        assert session.read_text().endswith(" nice 0\n")

    def test_a_solution_goes_first_while_it_is_timed_and_only_then(
        self,
        evaluate: Callable[..., list[Evaluation]],
        make_solution: Callable[..., Solution],
        make_workload: Callable[..., Workload],
        definition: Definition,
    ) -> None:
        workloads = [make_workload(definition, {"n": size}) for size in (8, 9)]
        evaluations = evaluate(make_solution(TELLING), workloads=workloads)
        assert [evaluation.status for evaluation in evaluations] == ["PASSED", "PASSED"]
        usual = str(os.getpriority(os.PRIO_PROCESS, 0))
        assert [evaluation.log.split() for evaluation in evaluations] == [[usual, "-20"]] * 2


def test_without_the_privilege_it_takes_its_turn(
    worker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = niceness(worker.pid)
    monkeypatch.setattr(os, "setpriority", refuse)
    precedence = Precedence(worker.pid)
    precedence.take()
    assert niceness(worker.pid) == before
    precedence.give_back()


def test_one_that_has_ended_is_let_go(worker: subprocess.Popen[str]) -> None:
    precedence = Precedence(worker.pid)
    precedence.take()
    worker.kill()
    worker.wait()
    precedence.give_back()
    Precedence(worker.pid).take()
