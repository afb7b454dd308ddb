"""Tests of workers that make their device contexts while the judge works: with real processes and a real lock.

On the CPU there is no device context; the request for it is answered all the same.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from fib_bench.judge.build import attempt
from fib_bench.judge.burst_lock import BurstLock
from fib_bench.judge.device_context import DeviceContext
from fib_bench.judge.function_worker import FunctionWorker, solution_request
from fib_bench.transport.messages import DeviceOpened
from fib_bench.worker.server_client import ForkServerClient
from fib_schema import Definition, Solution

_SECONDS = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of the lock of passes."""
    return tmp_path / "locks" / "d.bursts"


@pytest.fixture
def context(device_context: DeviceContext, path: Path) -> DeviceContext:
    return attrs.evolve(device_context, bursts=BurstLock(path))


@pytest.fixture
def function(
    server: ForkServerClient,
    definition: Definition,
    make_solution: Callable[..., Solution],
    monkeypatch: pytest.MonkeyPatch,
) -> FunctionWorker:
    monkeypatch.setattr(FunctionWorker, "_has_device_context", True)
    solution = make_solution("def run(x):\n    return x * 2\n")
    return FunctionWorker(server.spawn(), solution_request("cpu", definition, solution))


def may_time(path: Path) -> bool:
    """Whether another judge could time a pass now."""
    with path.open() as another:
        try:
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def stop(function: FunctionWorker) -> None:
    """Stop a worker, so that it answers nothing."""
    os.kill(function.worker.pid, signal.SIGSTOP)


def resume(function: FunctionWorker) -> None:
    os.kill(function.worker.pid, signal.SIGCONT)


def poll_until(context: DeviceContext, *, is_opening: bool) -> None:
    end = time.monotonic() + _SECONDS
    while bool(context.opening) is not is_opening and time.monotonic() < end:
        context.opening.poll()
    assert bool(context.opening) is is_opening


def test_others_time_no_passes_until_the_device_context_is_there(
    context: DeviceContext, function: FunctionWorker, path: Path
) -> None:
    stop(function)
    context.begin(function)
    context.opening.poll()
    assert context.opening
    assert not may_time(path)
    resume(function)
    poll_until(context, is_opening=False)
    assert may_time(path)
    assert attempt(function, _SECONDS) is None
    function.worker.close()


@pytest.mark.parametrize("block", ["exclusive", "no_device_work"])
def test_it_is_waited_for_before_passes_are_timed(
    context: DeviceContext, function: FunctionWorker, path: Path, block: str
) -> None:
    context.begin(function)
    assert context.opening
    with context.device_work(), getattr(context, block)():
        assert not context.opening
    assert may_time(path)
    function.worker.close()


def test_the_judge_goes_on_while_others_wait(
    context: DeviceContext, function: FunctionWorker, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BurstLock, "is_wanted", True)
    stop(function)
    context.begin(function)
    with context.device_work():
        context.give_way()
        assert context.opening
        assert not may_time(path)
        resume(function)
        context.settle()
    assert may_time(path)
    function.worker.close()


def test_compilers_start_when_the_device_context_is_there(context: DeviceContext, function: FunctionWorker) -> None:
    context.begin(function)
    assert not function._is_ahead
    poll_until(context, is_opening=False)
    assert function._is_ahead
    assert attempt(function, _SECONDS) is None
    function.worker.close()


def test_the_device_is_opened_once(
    context: DeviceContext, function: FunctionWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[DeviceOpened] = []
    monkeypatch.setattr(FunctionWorker, "_note_table", lambda self, opened: noted.append(opened))
    context.begin(function)
    context.settle()
    function._is_open = True
    assert attempt(function, _SECONDS) is None
    assert len(noted) == 1
    function.worker.close()


def test_a_worker_that_ends_is_reported_by_its_build(context: DeviceContext, function: FunctionWorker) -> None:
    stop(function)
    context.begin(function)
    os.kill(function.worker.pid, signal.SIGKILL)
    poll_until(context, is_opening=False)
    failure = attempt(function, _SECONDS)
    assert failure is not None
    assert failure.status == "RUNTIME_ERROR"
    assert "SIGKILL" in failure.log
    function.worker.close()


def test_a_worker_that_does_not_answer_is_waited_for_within_the_bound(
    context: DeviceContext, function: FunctionWorker, path: Path
) -> None:
    stop(function)
    context.begin(function)
    context.opening.settle(0.2)
    assert not context.opening
    assert function.worker.is_closed
    assert may_time(path)
