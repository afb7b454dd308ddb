"""Tests of verification: which timed calls are compared with fresh answers, and what makes a pass invalid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from fib_bench.checking.precision import LOW_PRECISION, relative_errors, relative_errors_of_calls
from fib_bench.judge.device_context import DeviceContext
from fib_bench.judge.evaluate import Judge
from fib_bench.judge.passes import TimedPass
from fib_bench.judge.prepared import GENERATED, InputSet, PreparedWorkload
from fib_bench.judge.rpc import NotCapturable, Rejected
from fib_bench.judge.timed_function import TimedFunction
from fib_bench.judge.verification import MIN_VERIFIED, Verification
from fib_schema import Definition, EvaluationStatus, Workload

CALLS = 12


@attrs.define(eq=False, slots=False)
class Timed:
    """A function that doubles, its passes, and the reference; numbers of timed calls are their keys."""

    prepared: PreparedWorkload
    function: TimedFunction
    verification: Verification = attrs.field(init=False)
    calls: int = CALLS
    failure: str = ""
    takes_several: bool = True
    made: int = 0
    unwritten: list[int] = attrs.field(factory=list)
    asked: list[int] = attrs.field(factory=list)
    """The keys of calls for which a fresh answer was wanted."""

    def __attrs_post_init__(self) -> None:
        self.verification = Verification(self.function, self)
        bound: Any = self
        self.verification.bind(bound, lambda _: torch.zeros(self.function.layout.input_bytes, dtype=torch.uint8))

    # what `Passes` does

    def recompute(self, made: TimedPass, outputs: torch.Tensor) -> list[int]:
        return self.unwritten

    def inputs_of(self, keys: Sequence[int], fixed: Sequence[torch.Tensor]) -> torch.Tensor:
        targets = torch.stack(list(fixed))
        x = self.function.layout.input_tensors(targets)["x"]
        for index, key in enumerate(keys):
            x[index] = torch.randn(x.shape[1], generator=torch.Generator().manual_seed(key))
            x[index, 0] = key
        return targets

    # as the reference does

    def answer_each(self, inputs: torch.Tensor) -> torch.Tensor | None:
        if not self.takes_several:
            return None
        x = self.function.layout.input_tensors(inputs)["x"]
        self.asked += x[:, 0].int().tolist()
        return self._doubled(x)

    def answer(self, slot: int, inputs: torch.Tensor) -> InputSet | None:
        if self.failure:
            return None
        x = self.function.layout.input_tensors(inputs)["x"]
        self.asked.append(int(x[0]))
        expected = self._doubled(x.unsqueeze(0))[0]
        check = self.prepared.checker.check(self.function.layout, inputs, expected, config=self.prepared.timed_config)
        return InputSet(GENERATED, inputs, expected, check)

    def _doubled(self, x: torch.Tensor) -> torch.Tensor:
        outputs = torch.zeros(len(x), self.function.layout.output_bytes, dtype=torch.uint8)
        self.function.layout.output_tensors(outputs)["y"].copy_(x * 2)
        return outputs

    # passes

    def run(self, change: Callable[[torch.Tensor], object] = lambda y: None, must_compare: int = 0) -> None:
        """Time a pass whose outputs, ``[calls, n]``, are changed."""
        keys = list(range(self.made, self.made + CALLS))
        self.made += CALLS
        fixed = [torch.zeros(self.function.layout.input_bytes, dtype=torch.uint8)] * CALLS
        self.function.slots.inputs[:] = self.inputs_of(keys, fixed)
        x = self.function.layout.input_tensors(self.function.slots.inputs)["x"]
        y = self.function.layout.output_tensors(self.function.slots.outputs)["y"]
        y.copy_(x * 2)
        change(y)
        timed = TimedPass([1] * CALLS, [(0, 0, key) for key in keys], [1] * CALLS, [0] * CALLS, None, 0, None)
        self.verification.add(timed, must_compare)

    def finish(self) -> None:
        self.verification.finish(self.prepared)


@pytest.fixture
def make_timed(
    make_judge: Callable[..., Judge],
    make_workload: Callable[..., Workload],
    definition: Definition,
    device_context: DeviceContext,
) -> Iterator[Callable[..., Timed]]:
    opened: list[TimedFunction] = []

    def make(n: int = 64, **fields: Any) -> Timed:
        prepared = make_judge().prepare(definition, make_workload(definition, {"n": n}))
        worker: Any = SimpleNamespace()
        opened.append(TimedFunction(worker, prepared.layout, CALLS, device_context))
        return Timed(prepared, opened[-1], **fields)

    yield make
    for function in opened:
        function.slots.close()


Make = Callable[..., Timed]


def test_detected_share_follows_from_what_was_compared(make_timed: Make) -> None:
    timed = make_timed()
    assert timed.verification.to_extra() == {"timed_calls": 0, "verified_calls": 0, "detected_share": None}
    timed.run()
    timed.finish()
    extra = timed.verification.to_extra()
    assert extra["timed_calls"] == CALLS
    assert MIN_VERIFIED <= extra["verified_calls"] == len(timed.asked) <= CALLS
    share = 1 - 0.01 ** (1 / len(timed.asked))
    assert extra["detected_share"] == pytest.approx(share, abs=1e-4)
    assert sum(comparison.count for comparison in timed.function.comparisons) == 64 * len(timed.asked)


def test_calls_of_all_passes_are_compared_alike(make_timed: Make) -> None:
    passes, found = 20, Counter[int]()
    timed = make_timed(8)
    for _ in range(15):
        timed.made, timed.asked = 0, []
        for _ in range(passes):
            timed.run()
            timed.verification.verify()
        timed.finish()
        assert len(set(timed.asked)) == len(timed.asked)
        found.update(key // CALLS for key in timed.asked)
    expected = found.total() / passes
    assert expected > 7
    deviation = sum((found[each] - expected) ** 2 / expected for each in range(passes))
    assert deviation < 52  # of 19 degrees of freedom, once in 15,000 cases


def test_moved_calls_are_compared_in_any_case_and_not_counted(make_timed: Make) -> None:
    timed = make_timed()
    for _ in range(10):
        timed.run()
    timed.run(must_compare=4)
    timed.finish()
    assert set(range(10 * CALLS, 10 * CALLS + 4)) < set(timed.asked)
    assert set(timed.asked) < set(range(10 * CALLS + 4))
    assert timed.verification.counted == 10 * CALLS


@pytest.mark.parametrize("takes_several", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda y: y[:, 5].add_(1.0), id="one element"),
        pytest.param(lambda y: y.copy_(y.roll(1, dims=0)), id="of another call"),
    ],
)
def test_wrong_outputs_are_found_and_named(
    make_timed: Make, change: Callable[[torch.Tensor], object], takes_several: bool
) -> None:
    timed = make_timed(takes_several=takes_several)
    timed.run(change)
    with pytest.raises(Rejected, match=r"timed calls: output 'y': \d+ of 64 elements are wrong; worst at \[") as caught:
        timed.finish()
    assert caught.value.status is EvaluationStatus.INCORRECT_NUMERICAL


def test_a_capture_may_have_missed_work(make_timed: Make) -> None:
    """Then eager calls decide, and there it is a verdict."""
    timed = make_timed()
    for is_captured, error in ((True, NotCapturable), (False, Rejected)):
        timed.verification.is_captured, timed.unwritten = is_captured, [3]
        timed.run()
        with pytest.raises(error, match="1 of 12 timed calls left outputs unwritten"):
            timed.verification.verify()
        timed.unwritten = []
        timed.run(lambda y: y.zero_())
        with pytest.raises(error, match="output 'y'"):
            timed.finish()


def test_changed_inputs_are_an_error(make_timed: Make) -> None:
    timed = make_timed()
    timed.run(lambda _: timed.function.slots.inputs[:, 40].add_(1))
    with pytest.raises(Rejected, match="must not write to its inputs") as caught:
        timed.verification.verify()
    assert caught.value.status is EvaluationStatus.RUNTIME_ERROR


def test_a_reference_that_fails_ends_the_comparison(make_timed: Make) -> None:
    timed = make_timed(takes_several=False, failure="it stumbled")
    timed.run(lambda y: y.zero_())
    timed.finish()
    assert timed.verification.to_extra()["detected_share"] is None


def test_too_few_bits_are_seen_in_timed_outputs(make_timed: Make) -> None:
    for change, flags in ((lambda y: None, []), (lambda y: y.copy_(y.bfloat16().float()), [LOW_PRECISION])):
        timed = make_timed(4096)
        timed.run(change)
        timed.finish()
        assert timed.verification.precision_flags == flags


def test_a_judge_that_waits_goes_before_the_verification_of_the_next_pass(
    make_timed: Make, device_context: DeviceContext
) -> None:
    """Verification takes milliseconds for each pass, in which all others would wait for a burst."""
    timed, turns = make_timed(), list[str]()
    timed.function.context = attrs.evolve(device_context, bursts=SimpleNamespace(is_shared=True, is_wanted=True))  # type: ignore[arg-type]
    timed.function.context.bursts.give_way = lambda: turns.append("other judge")  # type: ignore[union-attr, method-assign]
    timed.recompute = lambda made, outputs: turns.append("pass") or []  # type: ignore[method-assign, func-returns-value]
    timed.run()
    timed.run()
    timed.verification.verify()
    assert turns == ["other judge", "pass"] * 2


@pytest.mark.parametrize("shape", [(7,), (3, 5), (4, 1), (1,), (2, 3, 8)])
def test_errors_of_several_calls_are_those_of_each(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    expected = torch.randn(CALLS, *shape, generator=generator)
    found = expected + 1e-3 * torch.randn(expected.shape, generator=generator)
    expected[2], found[4] = 0.0, expected[4]
    together = relative_errors_of_calls({"y": found}, {"y": expected})["y"]
    alone = [relative_errors({"y": a}, {"y": b})["y"] for a, b in zip(found, expected, strict=True)]
    assert together == pytest.approx(alone)
