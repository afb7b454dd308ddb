"""Tests of the evaluation of solutions without a data set."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from fib_bench import evaluate
from fib_bench.api import _judges, close
from fib_schema import Definition, Solution, Workload

MakeSolution = Callable[..., Solution]
MakeWorkload = Callable[..., Workload]
GOOD, WRONG = "def run(x):\n    return x * 2\n", "def run(x):\n    return x * 3\n"


@pytest.fixture(scope="module", autouse=True)
def ends() -> Iterator[None]:
    yield
    close()


@pytest.mark.slow
def test_answers_come_from_one_process_until_it_is_gone(
    definition: Definition, make_workload: MakeWorkload, make_solution: MakeSolution
) -> None:
    workload = make_workload(definition, {"n": 5})

    def statuses(source: str) -> list[str]:
        result = evaluate(definition, make_solution(source), [workload])
        return [str(trace.evaluation.status) for trace in result.traces if trace.evaluation]

    answers: list[list[str]] = []
    thread = threading.Thread(target=lambda: answers.append(statuses(GOOD)))
    thread.start()
    thread.join()
    assert answers == [["PASSED"]]
    pid = _judges["cpu"][1]._process.pid  # the thread is gone, and the process is there
    assert statuses(WRONG) == ["INCORRECT_NUMERICAL"]
    assert statuses(GOOD) == ["PASSED"]
    assert _judges["cpu"][1]._process.pid == pid
    os.kill(pid, signal.SIGKILL)
    assert statuses(GOOD) == ["PASSED"]
