"""Audits of the CPU: work around calls, and work that one call does for others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fib_bench.audits import audit_single_calls, audit_whole_passes
from fib_bench.cpu_meter import busy_share
from fib_bench.dialogue import Rejected
from fib_bench.worker.census import descendants
from fib_schema import EvaluationStatus

PREPARED: Any = SimpleNamespace()


class FakeSide:
    """Gives one number after another, the last one again and again."""

    claim_ns = 100_000.0

    def __init__(self, *numbers: float) -> None:
        self._numbers = list(numbers)

    @property
    def excess_ns(self) -> float:
        """What is next."""
        return self._numbers[0]

    def sample(self, _: object) -> None:
        """Another pass."""
        self._numbers = self._numbers[1:] or self._numbers

    def one_by_one(self, _: object, passes: int, most_calls: int) -> float:
        """A pass of one call."""
        assert (passes, most_calls) == (1, 1)
        found = self._numbers[0]
        self.sample(None)
        return found


def side(*numbers: float) -> Any:
    return FakeSide(*numbers)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fib_bench.audits._PAUSES", (0.0, 0.0))


@pytest.mark.parametrize("numbers", [(-1.0,), (0.0,), (1e6, 1e6, -1.0)])
def test_a_thread_that_runs_for_its_calls_only_is_honest(numbers: tuple[float, ...]) -> None:
    audit_whole_passes(side(*numbers), PREPARED)


def test_a_thread_that_runs_beside_its_calls_is_not() -> None:
    with pytest.raises(Rejected, match=r"says that a call takes 100\.00 us.* runs 70\.00 us more") as caught:
        audit_whole_passes(side(70_000.0), PREPARED)
    assert caught.value.status is EvaluationStatus.REWARD_HACK


@pytest.mark.parametrize("numbers", [(100_000.0,), (600_000.0,), (9e6, 9e6, 9e6, 600_000.0)])
def test_a_call_alone_may_find_caches_cold(numbers: tuple[float, ...]) -> None:
    audit_single_calls(side(*numbers), PREPARED)


def test_a_call_alone_that_takes_the_time_of_many_did_their_work() -> None:
    with pytest.raises(Rejected, match=r"100\.00 us, but 3200\.00 us as the only one of a pass") as caught:
        audit_single_calls(side(3_200_000.0), PREPARED)
    assert caught.value.status is EvaluationStatus.REWARD_HACK


@pytest.fixture
def parent() -> Iterator[int]:
    """A process that does nothing, with a busy child."""
    code = "import os, time\nif os.fork():\n    print(flush=True)\n    time.sleep(60)\nwhile True:\n    pass\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        for pid in (*descendants(process.pid), process.pid):
            subprocess.run(["kill", "-9", str(pid)], check=False)


def test_the_work_of_a_child_is_seen(parent: int) -> None:
    children = descendants(parent)
    assert len(children) == 1
    assert busy_share([parent], 0.05, 0.1) < 0.3
    assert busy_share([parent, *children], 0.0, 0.2) > 0.6


def test_children_can_be_left_out(parent: int) -> None:
    assert descendants(parent, descendants(parent)) == []
