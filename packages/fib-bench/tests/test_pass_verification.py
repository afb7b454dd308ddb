"""Tests of the verification of linked passes: how many replays are compared with fresh answers, whatever their size."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from fib_bench.judge.graph_safety import MIN_VERIFIED
from fib_bench.judge.pass_verification import MIN_PASSES, PassVerification
from fib_bench.judge.rpc import NotCapturable

CALLS, BYTES = 17, 8
SMALL, LARGE = 1 << 20, 350 << 20


@attrs.define
class Clock:
    """Seconds that pass only while the reference answers."""

    now: float = 0.0

    def seconds(self) -> float:
        return self.now

    def give_way(self) -> None:
        """Nobody else waits."""


@attrs.define
class Verifier:
    """Counts the calls that were compared, each of which takes the reference a while."""

    clock: Clock
    seconds_each: float
    fresh: int = 0
    wrong_from: float = float("inf")
    answers_at_most: float = float("inf")

    def verify_many(self, prepared: Any, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        del prepared, outputs
        self.clock.now += self.seconds_each * len(inputs)
        self.fresh = int(min(self.fresh + len(inputs), self.answers_at_most))
        if self.fresh >= self.wrong_from:
            raise NotCapturable("outputs are wrong")

    def check_together(self, prepared: Any) -> None:
        """No outputs are judged together."""


class Passes:
    """Passes of a function that is right."""

    def __init__(self, slots: Any) -> None:
        self._slots = slots
        self.made = 0

    def run(self, kind: int, calls: int, *, is_timed: bool = True) -> Any:
        del kind, is_timed
        self.made += 1
        return SimpleNamespace(calls=calls)

    def recompute(self, made: Any, outputs: torch.Tensor) -> list[int]:
        del made, outputs
        return []

    def inputs_of(self, chosen: list[int], fixed: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        del fixed, candidates
        return self._slots.inputs[chosen]


@attrs.frozen
class Run:
    """A timing whose passes are over."""

    verification: PassVerification
    verifier: Verifier
    passes: Passes

    def finish(self, *, draws: bool = True) -> int:
        """Finish; returns how many calls were compared."""
        draw = (lambda _: torch.zeros(2, BYTES, dtype=torch.uint8)) if draws else None
        prepared: Any = SimpleNamespace(trials=())
        self.verification.finish(prepared, CALLS, draw=draw)
        return self.verifier.fresh


@pytest.fixture
def make_run() -> Callable[..., Run]:
    def make(size_bytes: int, seconds_each: float = 0.001, **options: Any) -> Run:
        clock = Clock()
        verifier = Verifier(clock, seconds_each, **options)
        memory = torch.zeros(CALLS, BYTES, dtype=torch.uint8)
        slots = SimpleNamespace(inputs=memory, outputs=memory, candidates=memory[:2].clone(), count=CALLS)
        function: Any = SimpleNamespace(
            context=clock, slots=slots, layout=SimpleNamespace(size_bytes=size_bytes), has_setup=False
        )
        passes: Any = Passes(slots)
        base: Any = SimpleNamespace(inputs=memory[0])
        verification = PassVerification(function, passes, base, verifier)  # type: ignore[arg-type]
        for _ in range(MIN_PASSES):
            verification.add(passes.run(0, CALLS), slots.candidates)
        return Run(verification, verifier, passes)

    return make


def test_of_small_tensors_90_calls_are_compared(make_run: Callable[..., Run]) -> None:
    run = make_run(SMALL)
    assert run.finish() == 90
    assert run.passes.made == MIN_PASSES


@pytest.mark.parametrize(("size_bytes", "seconds_each"), [(LARGE, 0.001), (SMALL, 0.1), (LARGE, 0.1)])
def test_large_tensors_and_slow_references_do_not_prevent_evidence(
    make_run: Callable[..., Run], size_bytes: int, seconds_each: float
) -> None:
    assert make_run(size_bytes, seconds_each).finish(draws=False) < MIN_VERIFIED
    run = make_run(size_bytes, seconds_each)
    assert run.finish() == MIN_VERIFIED
    assert run.passes.made > MIN_PASSES


def test_a_reference_that_takes_seconds_is_not_asked_on_and_on(make_run: Callable[..., Run]) -> None:
    run = make_run(LARGE, 5.0)
    assert run.finish() == 3  # two in any case, and one that begins in time
    assert make_run(LARGE, 0.0, answers_at_most=2).finish() == 2  # it has failed


def test_a_wrong_replay_of_a_further_pass_is_a_wrong_capture(make_run: Callable[..., Run]) -> None:
    with pytest.raises(NotCapturable, match="outputs are wrong"):
        make_run(LARGE, wrong_from=MIN_VERIFIED).finish()
