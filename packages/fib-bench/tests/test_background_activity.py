"""Tests of background activity: a worker must be idle after its replies."""

import gc
import itertools
import os
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from fib_bench.worker import outside_checks
from fib_bench.worker.client import Rejected
from fib_bench.worker.outside_checks import BackgroundActivity, cpu_seconds, descendants
from fib_schema import EvaluationStatus


class FakeMachine:
    """A clock that moves by sleeping, and a worker that uses as many cores as its schedule says at that time.

    Args:
        schedule: From which second on it uses how many cores.
    """

    def __init__(self, *schedule):
        self.now = 0.0
        self._schedule = schedule

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def used(self):
        total = 0.0
        for (begin, cores), end in zip(self._schedule, [s for s, _ in self._schedule[1:]] + [1e9], strict=True):
            total += cores * max(min(self.now, end) - begin, 0.0)
        return total


@pytest.fixture
def observe(monkeypatch):
    def observe(*schedule, waited=lambda _: {}):
        machine = FakeMachine(*schedule)
        monkeypatch.setattr(outside_checks, "time", machine)
        monkeypatch.setattr(outside_checks, "usage", lambda *_, **__: (machine.used(), waited(machine)))
        return BackgroundActivity(SimpleNamespace(pid=1, server=SimpleNamespace(processes=(), workers=()))), machine

    return observe


def test_an_idle_worker_passes_at_once(observe):
    activity, machine = observe((0.0, 0.0))
    activity.check()
    assert machine.now < 0.02


def test_a_thread_that_a_list_missed_has_not_waited_since(observe):
    """It had waited for seconds before, on a busy machine."""
    lists = itertools.cycle([{"1": 7}, {"1": 7, "2": 3_000_000_000}])
    activity, _ = observe((0.0, 0.0), waited=lambda _: next(lists))
    for _ in range(5):
        activity.begin()
        activity.end()
    activity.check()


@pytest.mark.parametrize(("ran", "is_accused"), [(0.0005, False), (0.05, True)])
def test_a_thread_that_wakes_up_for_a_moment_may_wait_for_a_processor(observe, ran, is_accused):
    """One that always works gets a share of its processor, here a twentieth."""
    activity, _ = observe((0.0, ran), waited=lambda machine: {"1": int(machine.now * 0.95e9)})
    with pytest.raises(Rejected, match="background activity") if is_accused else nullcontext():
        activity.check()


def test_a_pool_of_threads_may_spin_before_it_sleeps(observe):
    activity, machine = observe((0.0, 8.0), (0.2, 0.0))
    activity.begin()
    assert machine.now >= 0.2
    machine.sleep(1.0)
    activity.end()
    activity.check()


@pytest.mark.parametrize("cores", [0.5, 1.0, 8.0])
def test_a_worker_that_never_becomes_idle_is_rejected(observe, cores):
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
def test_work_while_others_are_timed_is_not_excused(observe, schedule, seconds, is_accused):
    activity, machine = observe((0.0, 0.0), *schedule)
    activity.begin()
    machine.sleep(seconds)
    activity.end()
    with pytest.raises(Rejected, match="background activity") if is_accused else nullcontext():
        activity.check()


@pytest.fixture
def parent():
    """A process that does nothing, with a busy child."""
    code = "import os, time\nif os.fork():\n    print(flush=True)\n    time.sleep(600)\nwhile True:\n    pass\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        process.stdout.readline()
        yield process.pid
        for pid in (*descendants(process.pid), process.pid):
            subprocess.run(["kill", "-9", str(pid)], check=False)


def test_the_work_of_a_child_counts(parent):
    (child,) = descendants(parent)
    alone, before = cpu_seconds([parent]), cpu_seconds([child])
    while cpu_seconds([parent, child]) < alone + before + 0.05:
        pass
    assert cpu_seconds([parent]) < alone + 0.02


def test_a_thread_that_ends_while_children_are_listed_leaves_nothing_open(monkeypatch):
    def has_ended(*_):
        raise ProcessLookupError

    monkeypatch.setattr("fib_bench.worker.outside_checks._children_of", has_ended)
    assert descendants(os.getpid()) == []
    gc.collect()  # an open iterator of a folder would warn


def test_a_process_that_has_ended_uses_nothing():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert cpu_seconds([process.pid]) == 0.0
