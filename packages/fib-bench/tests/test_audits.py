"""Audits of the CPU: work around calls, and work that one call does for others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fib_bench.judge.audits import (
    audit_processor_time,
    audit_single_calls,
    audit_times,
    audit_whole_passes,
)
from fib_bench.judge.cpu_time import CpuTime, Stopwatch, busy_share, cpu_time_of
from fib_bench.judge.pass_timing import Alone
from fib_bench.transport.rpc import NotCapturable, Rejected
from fib_bench.worker.process_tree import descendants
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

    def sample(self, _: object, *, must_ask: bool = False) -> None:
        """Another pass."""
        self._numbers = self._numbers[1:] or self._numbers

    def one_by_one(self, _: object, passes: int, most_calls: int) -> Alone:
        """A pass of one call, around which nothing is done."""
        assert (passes, most_calls) == (1, 1)
        found = self._numbers[0]
        self.sample(None)
        return Alone(found, found)


def side(*numbers: float) -> Any:
    return FakeSide(*numbers)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fib_bench.judge.audits._PAUSES", (0.0, 0.0))
    monkeypatch.setattr("fib_bench.judge.audits.LATER", (0.0, 0.0))


@pytest.mark.parametrize("numbers", [(-1.0,), (0.0,), (1e6, 1e6, -1.0)])
def test_a_thread_that_runs_for_its_calls_only_is_honest(numbers: tuple[float, ...]) -> None:
    audit_whole_passes(side(*numbers), PREPARED)


def test_a_thread_that_runs_beside_its_calls_is_not() -> None:
    with pytest.raises(Rejected, match=r"says that a call takes 100\.00 us.* runs 70\.00 us more") as caught:
        audit_whole_passes(side(70_000.0), PREPARED)
    assert caught.value.status is EvaluationStatus.REWARD_HACK


class FallingSide:
    """Says a smaller time after each audit.

    Args:
        claims_ns: One after another, the last again and again.
    """

    chain = 1

    def __init__(self, *claims_ns: float) -> None:
        self._claims_ns = list(claims_ns)

    @property
    def claim_ns(self) -> float:
        """What is next."""
        return self._claims_ns[0]

    def audit(self, _: object) -> None:
        """Passes."""
        self._claims_ns = self._claims_ns[1:] or self._claims_ns


@pytest.mark.parametrize("claims_ns", [(100.0,), (100.0, 95.0), (100.0, 50.0, 49.0)])
def test_a_claim_that_settles_has_stood_the_clocks(claims_ns: tuple[float, ...]) -> None:
    found: Any = FallingSide(*claims_ns)
    audit_times(found, PREPARED, "cuda")
    assert found.claim_ns == claims_ns[-1]


def test_a_claim_that_falls_whenever_somebody_looks_has_not() -> None:
    found: Any = FallingSide(*(0.5**step for step in range(20)))
    with pytest.raises(Rejected, match="said more each time"):
        audit_times(found, PREPARED, "cuda")


class RunningSide:
    """Says that a call takes 100 us; its main thread runs for each call as long as it is told, one pass after another.

    Args:
        run_ns: For each call, by request; the last again and again.
    """

    claim_ns = last_claim_ns = 100_000.0
    calls_per_pass = 4
    worker = SimpleNamespace(pid=0)

    def __init__(self, *run_ns: float) -> None:
        self._run_ns = list(run_ns)
        self._ran_ns = 0
        self._samples = 0
        self.passes: list[int] = []

    def repeat(self, _: object, passes: int) -> float:
        """Some passes, and what is done around them; first one, to see how long that takes."""
        self.passes.append(passes)
        taken = self._run_ns[0] * passes * self.calls_per_pass
        if len(self.passes) > 1:
            self._ran_ns += round(taken) + 50_000
            self._run_ns = self._run_ns[1:] or self._run_ns
        return taken

    def sample(self, _: object, *, must_ask: bool = False) -> None:
        """Another timed pass."""
        self._samples += 1

    @property
    def tries(self) -> int:
        """How often it was looked at: between three requests there are two timed passes."""
        return self._samples // 2

    def ran(self, pid: int) -> CpuTime:
        """What the system has counted."""
        return CpuTime(self._ran_ns, self._ran_ns)


class TestProcessorTime:
    @pytest.fixture
    def audit(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        def audit(found: Any) -> RunningSide:
            monkeypatch.setattr("fib_bench.judge.audits.cpu_time_of", found.ran)
            monkeypatch.setattr("fib_bench.judge.audits.cpu_time_asleep", found.ran)
            monkeypatch.setattr("fib_bench.judge.audits._TRIES", (0.0,) * 4)
            audit_processor_time(found, PREPARED)
            return found

        return audit

    @pytest.mark.parametrize("run_ns", [100_000.0, 0.0, 209_000.0])
    def test_a_thread_that_runs_as_long_as_calls_take_is_honest_at_once(self, audit: Any, run_ns: float) -> None:
        assert audit(RunningSide(run_ns)).tries == 1

    def test_a_disturbed_try_is_outvoted_by_one_that_is_not(self, audit: Any) -> None:
        assert audit(RunningSide(3e6, 2e6, 3e6, 2e6, 3e6, 2e6, 100_000.0)).tries == 3

    def test_a_try_is_put_together_from_passes_that_nobody_disturbed(self, audit: Any) -> None:
        """In each try requests are disturbed, and a difference of these says nothing."""
        assert audit(RunningSide(110_000.0, 3e6, 110_000.0, 3e6, 110_000.0, 3e6)).tries == 2

    def test_a_disturbance_of_few_calls_hides_nothing(self, audit: Any) -> None:
        with pytest.raises(Rejected, match=r"its main thread runs 300\.00 us for it"):
            audit(RunningSide(900_000.0, 300_000.0, 300_000.0))

    def test_who_says_too_little_gets_no_passes_without_end(self, audit: Any) -> None:
        found = RunningSide(1_000_000.0)
        found.claim_ns = found.last_claim_ns = 0.1
        with pytest.raises(Rejected):
            audit(found)
        assert max(found.passes) == 3

    def test_a_claim_from_a_busy_time_covers_nothing(self, audit: Any) -> None:
        """A twentieth of what a call took then is as much as it takes now."""
        found = RunningSide(100_000.0)
        found.last_claim_ns = 5_000.0
        with pytest.raises(Rejected, match=r"takes 5\.00 us, but its main thread runs 100\.00 us"):
            audit(found)

    def test_a_thread_that_runs_longer_in_all_of_them_is_not(self, audit: Any) -> None:
        with pytest.raises(Rejected, match=r"takes 100\.00 us, but its main thread runs 300\.00 us for it") as caught:
            audit(RunningSide(300_000.0, 900_000.0, 900_000.0, 900_000.0, 300_000.0))
        assert caught.value.status is EvaluationStatus.REWARD_HACK


def test_what_a_thread_runs_is_read_when_it_sleeps() -> None:
    """A system may count what a running thread has run at its next tick only."""
    code = "import sys, time\nfor _ in sys.stdin:\n    print(flush=True)\n    end = time.thread_time() + 0.003\n" + (
        "    while time.thread_time() < end:\n        pass\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        watch = Stopwatch(process.pid)
        for count in range(1, 4):
            process.stdin.write("\n")
            process.stdin.flush()
            process.stdout.readline()
            assert watch.ran_ns() >= count * 3e6
        process.stdin.close()
    assert cpu_time_of(process.pid) is None


@pytest.mark.parametrize("numbers", [(100_000.0,), (600_000.0,), (9e6, 9e6, 9e6, 600_000.0)])
def test_a_call_alone_may_find_caches_cold(numbers: tuple[float, ...]) -> None:
    audit_single_calls(side(*numbers), PREPARED)


def test_a_call_alone_that_takes_the_time_of_many_did_their_work() -> None:
    with pytest.raises(Rejected, match=r"100\.00 us, but 3200\.00 us as the only one of a pass") as caught:
        audit_single_calls(side(3_200_000.0), PREPARED)
    assert caught.value.status is EvaluationStatus.REWARD_HACK


class ToldSide:
    """Says of the only call of a pass what it is told to say, and takes what it is told to take.

    Args:
        claim_ns: What it says of any call.
        outside_ns: What a pass takes by the judge's clock, one after another, the last again and again.
    """

    def __init__(self, claim_ns: float, *outside_ns: float) -> None:
        self.claim_ns = claim_ns
        self._outside_ns = list(outside_ns)

    def one_by_one(self, _: object, passes: int, most_calls: int) -> Alone:
        """A pass of one call."""
        assert (passes, most_calls) == (1, 1)
        found = self._outside_ns[0]
        self._outside_ns = self._outside_ns[1:] or self._outside_ns
        return Alone(self.claim_ns, found)


class TestWorkOfSingleCalls:
    REFERENCE = 1_000_000.0, 1_200_000.0
    """What it says and what it takes: 200 us around a call."""

    @pytest.mark.parametrize(
        ("claim_ns", "outside_ns"),
        [
            (1_000_000.0, (1_200_000.0,)),
            (5_000.0, (500_000.0,)),  # caches are cold
            (5_000.0, (9e6, 8e6, 9e6, 500_000.0)),  # others were at work
        ],
    )
    def test_what_is_said_holds(self, claim_ns: float, outside_ns: tuple[float, ...]) -> None:
        told: Any = ToldSide(claim_ns, *outside_ns)
        reference: Any = ToldSide(*self.REFERENCE)
        audit_single_calls(told, PREPARED, reference)

    def test_what_is_said_of_a_call_that_is_alone_is_no_lie_for_that(self) -> None:
        told: Any = ToldSide(5_000.0, 1_200_000.0)
        reference: Any = ToldSide(*self.REFERENCE)
        with pytest.raises(Rejected, match=r"takes 1200\.00 us by the judge's clock \(590\.00 us would") as caught:
            audit_single_calls(told, PREPARED, reference)
        assert caught.value.status is EvaluationStatus.REWARD_HACK

    def test_a_reference_that_was_disturbed_covers_nothing(self) -> None:
        told: Any = ToldSide(5_000.0, 1_200_000.0)
        reference: Any = ToldSide(1_000_000.0, 9e6, 9e6, 1_200_000.0)
        with pytest.raises(Rejected):
            audit_single_calls(told, PREPARED, reference)

    def test_without_a_reference_only_a_gross_lie_is_one(self) -> None:
        told: Any = ToldSide(5_000.0, 6e6)
        audit_single_calls(told, PREPARED)
        told = ToldSide(5_000.0, 7e6)
        with pytest.raises(Rejected, match="by the judge's clock"):
            audit_single_calls(told, PREPARED)

    def test_a_reference_that_fails_says_nothing(self) -> None:
        class Failing(ToldSide):
            def one_by_one(self, *_: object, **__: object) -> Alone:
                raise NotCapturable("it fails")

        told: Any = ToldSide(5_000.0, 1e9)
        reference: Any = Failing(0.0, 0.0)
        audit_single_calls(told, PREPARED, reference)


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
