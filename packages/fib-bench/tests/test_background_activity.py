"""Tests of background activity: a worker must be idle after its replies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from fib_bench.judge import function_worker
from fib_bench.judge.function_worker import BackgroundActivity, Rejected, cpu_seconds
from fib_bench.worker.process_tree import descendants
from fib_schema import EvaluationStatus


class FakeMachine:
    """A clock that moves by sleeping, and a worker that uses as many cores as its schedule says at that time.

    Args:
        schedule: From which second on it uses how many cores.
    """

    def __init__(self, *schedule: tuple[float, float]) -> None:
        self.now = 0.0
        self._schedule = schedule

    def monotonic(self) -> float:
        """The time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def used(self) -> float:
        """The processor time so far."""
        total = 0.0
        for (begin, cores), end in zip(self._schedule, [s for s, _ in self._schedule[1:]] + [1e9], strict=True):
            total += cores * max(min(self.now, end) - begin, 0.0)
        return total


@pytest.fixture
def observe(monkeypatch: pytest.MonkeyPatch) -> Any:
    def observe(*schedule: tuple[float, float]) -> tuple[BackgroundActivity, FakeMachine]:
        machine = FakeMachine(*schedule)
        monkeypatch.setattr(function_worker, "time", machine)
        monkeypatch.setattr(function_worker, "cpu_seconds", lambda _: machine.used())
        worker: Any = SimpleNamespace(pid=1, started=list)
        return BackgroundActivity(worker), machine

    return observe


def test_an_idle_worker_passes_at_once(observe: Any) -> None:
    activity, machine = observe((0.0, 0.0))
    activity.check()
    assert machine.now < 0.02


def test_a_pool_of_threads_may_spin_before_it_sleeps(observe: Any) -> None:
    activity, machine = observe((0.0, 8.0), (0.2, 0.0))
    activity.begin()
    assert machine.now >= 0.2
    machine.sleep(1.0)
    activity.end()
    activity.check()


@pytest.mark.parametrize("cores", [0.5, 1.0, 8.0])
def test_a_worker_that_never_becomes_idle_is_rejected(observe: Any, cores: float) -> None:
    activity, _ = observe((0.0, cores))
    with pytest.raises(Rejected, match=rf"^background activity: the worker used {cores} CPU cores") as caught:
        activity.begin()
    assert caught.value.status is EvaluationStatus.REWARD_HACK


@pytest.mark.parametrize(
    ("schedule", "seconds", "is_accused"),
    [
        pytest.param([(0.01, 1.0), (0.2, 0.0)], 0.2, True, id="idle-whenever-someone-looks"),
        pytest.param([(0.3, 1.0)], 0.3, True, id="begins-later"),
        pytest.param([(0.5, 1.0), (0.55, 0.0)], 2.0, False, id="a-short-disturbance"),
    ],
)
def test_work_while_others_are_timed_is_not_excused(
    observe: Any, schedule: list[tuple[float, float]], seconds: float, is_accused: bool
) -> None:
    activity, machine = observe((0.0, 0.0), *schedule)
    activity.begin()
    machine.sleep(seconds)
    activity.end()
    with pytest.raises(Rejected, match="background activity") if is_accused else nullcontext():
        activity.check()


@pytest.fixture
def parent() -> Iterator[int]:
    """A process that does nothing, with a busy child."""
    code = "import os, time\nif os.fork():\n    print(flush=True)\n    time.sleep(600)\nwhile True:\n    pass\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        for pid in (*descendants(process.pid), process.pid):
            subprocess.run(["kill", "-9", str(pid)], check=False)


def test_the_work_of_a_child_counts(parent: int) -> None:
    (child,) = descendants(parent)
    alone, before = cpu_seconds([parent]), cpu_seconds([child])
    while cpu_seconds([parent, child]) < alone + before + 0.05:
        pass
    assert cpu_seconds([parent]) < alone + 0.02


def test_a_process_that_has_ended_uses_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert cpu_seconds([process.pid]) == 0.0
