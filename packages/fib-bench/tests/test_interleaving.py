"""Tests of the interleaved timing of a solution and its baselines, with timers and a clock that only they move."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from fib_bench import ResolvedEvalConfig
from fib_bench.judge.baselines import REFERENCE, InterleavedBaselines
from fib_bench.timing import StopRule

RULE = StopRule(iterations=5, max_iterations=10_000, confidence=0.001, max_seconds=1.0, busy_seconds=1e9)


@attrs.define
class Machine:
    """A device context with a clock."""

    now: float = 0.0
    timeout_seconds: float = 1000.0

    def seconds(self) -> float:
        return self.now

    def no_device_work(self) -> AbstractContextManager[None]:
        return nullcontext()


@attrs.define
class NoisyTimer:
    """One sample a pass, alternately short and long, so that the median is never precise."""

    machine: Machine
    seconds: float
    method: str = "cpu"
    samples: list[float] = attrs.field(factory=list)

    def sample(self, prepared: object) -> None:
        del prepared
        self.machine.now += self.seconds
        self.samples.append(1e6 * (1 + len(self.samples) % 2))

    def is_done(self, rule: StopRule) -> bool:
        taken = len(self.samples) * self.seconds
        return rule.is_done(self.samples, taken, taken)


def timed(machine: Machine, solution: NoisyTimer, reference: NoisyTimer) -> None:
    place: Any = SimpleNamespace(context=machine)
    nothing: Any = None
    baselines = InterleavedBaselines(nothing, place, nothing, nothing, ResolvedEvalConfig(), None)
    timers: Any = {REFERENCE: reference}
    baselines._timers = timers
    activity: Any = SimpleNamespace(begin=lambda: None, end=lambda: None)
    interleaved: Any = solution
    baselines.time_interleaved(interleaved, RULE, activity)


def test_a_slow_solution_is_not_timed_until_a_fast_reference_is_precise() -> None:
    machine = Machine()
    solution, reference = NoisyTimer(machine, 0.2), NoisyTimer(machine, 0.0001)
    timed(machine, solution, reference)
    assert machine.now == pytest.approx(2.0, abs=0.3)
    assert len(reference.samples) == len(solution.samples) == 10


def test_a_reference_has_its_least_number_of_samples_however_slow_it_is() -> None:
    machine = Machine()
    reference = NoisyTimer(machine, 3.0)
    timed(machine, NoisyTimer(machine, 0.5), reference)
    assert len(reference.samples) == 3


def test_a_fast_solution_goes_on_until_it_has_used_its_own_time() -> None:
    machine = Machine()
    solution, reference = NoisyTimer(machine, 0.001), NoisyTimer(machine, 0.5)
    timed(machine, solution, reference)
    assert len(solution.samples) == 1000
    assert len(reference.samples) == 3
