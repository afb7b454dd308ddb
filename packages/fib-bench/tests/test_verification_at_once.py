"""Tests of the verification of many timed calls at once, with a real worker of the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import pytest
import torch
from fib_bench import ResolvedEvalConfig
from fib_bench.checking.precision import LOW_PRECISION, relative_errors, relative_errors_of_calls
from fib_bench.judge.baselines import REFERENCE, InterleavedBaselines
from fib_bench.judge.evaluate import Judge
from fib_bench.judge.prepared import PreparedWorkload
from fib_bench.judge.rpc import Rejected
from fib_bench.judge.timed_function import TimedFunction
from fib_bench.judge.verification import Verifier
from fib_schema import Definition, Workload

CALLS = 12
ENDS_AT_CALL_40 = """
import os

calls = 0

def run(x):
    global calls
    calls += 1
    if calls == 40:
        os._exit(3)
    return x * 2
"""


@attrs.frozen
class Timed:
    """Calls of a perfect function on a workload, and who verifies them."""

    prepared: PreparedWorkload
    function: TimedFunction
    baselines: InterleavedBaselines
    inputs: torch.Tensor
    outputs: torch.Tensor

    @property
    def verifier(self) -> Verifier:
        return Verifier(self.function, self.baselines)

    def output(self, name: str = "y") -> torch.Tensor:
        """The outputs, ``[calls, n]``, to be changed in place."""
        return self.function.layout.output_tensors(self.outputs)[name]


@pytest.fixture
def make_timed(
    make_judge: Callable[..., Judge], make_workload: Callable[..., Workload]
) -> Iterator[Callable[[Definition], Timed]]:
    opened = []

    def make(definition: Definition, n: int = 64) -> Timed:
        judge = make_judge()
        prepared = judge.prepare(definition, make_workload(definition, {"n": n}))
        reference = judge._baselines.worker(REFERENCE, definition).worker
        function = TimedFunction(reference, prepared.layout, CALLS, judge.context)
        context = judge._baselines.interleaved(
            function, definition, attrs.evolve(prepared, slots=CALLS), ResolvedEvalConfig(), is_reference_timed=False
        )
        baselines = context.__enter__()
        opened.append((function, context))
        Verifier(function).refresh(prepared)
        inputs = function.slots.inputs.clone()
        outputs = torch.zeros(CALLS, function.layout.output_bytes, dtype=torch.uint8)
        x = function.layout.input_tensors(inputs)["x"]
        function.layout.output_tensors(outputs)["y"].copy_(x * 2)
        return Timed(prepared, function, baselines, inputs, outputs)

    yield make
    for function, context in opened:
        context.__exit__(None, None, None)
        function.slots.close()


def test_right_outputs_are_compared_at_once(make_timed: Callable[..., Timed], definition: Definition) -> None:
    timed = make_timed(definition)
    verifier = timed.verifier
    verifier.verify_many(timed.prepared, timed.inputs, timed.outputs)
    assert verifier.fresh == CALLS
    (comparison,) = timed.function.comparisons
    assert (comparison.count, comparison.wrong) == (CALLS * 64, 0)


@pytest.mark.parametrize("call", [0, CALLS - 1])
def test_one_wrong_element_of_one_call_is_found_and_named(
    make_timed: Callable[..., Timed], definition: Definition, call: int
) -> None:
    timed = make_timed(definition)
    timed.output()[call, 5] += 1.0
    with pytest.raises(Rejected, match=r"timed calls: output 'y': 1 of 64 elements are wrong; worst at \[5\]"):
        timed.verifier.verify_many(timed.prepared, timed.inputs, timed.outputs)


def test_the_answer_to_another_call_is_wrong(make_timed: Callable[..., Timed], definition: Definition) -> None:
    timed = make_timed(definition)
    timed.output()[[3, 4]] = timed.output()[[4, 3]]
    with pytest.raises(Rejected, match="of 64 elements are wrong"):
        timed.verifier.verify_many(timed.prepared, timed.inputs, timed.outputs)


def test_a_reference_that_fails_is_asked_again_one_by_one_in_a_fresh_worker(
    make_timed: Callable[..., Timed], definition: Definition
) -> None:
    timed = make_timed(attrs.evolve(definition, reference=ENDS_AT_CALL_40))
    verifier = timed.verifier
    for _ in range(5):
        verifier.verify_many(timed.prepared, timed.inputs, timed.outputs)
    assert verifier.fresh == 5 * CALLS
    assert not timed.baselines.failure


def test_too_few_bits_are_seen_in_outputs_that_are_compared_at_once(
    make_timed: Callable[..., Timed], definition: Definition
) -> None:
    timed = make_timed(definition, n=4096)
    verifier = timed.verifier
    verifier.verify_many(timed.prepared, timed.inputs, timed.outputs)
    assert verifier.precision_flags == []
    timed.output().copy_(timed.output().half().float())
    verifier = timed.verifier
    verifier.verify_many(timed.prepared, timed.inputs, timed.outputs)
    assert verifier.precision_flags == [LOW_PRECISION]


@pytest.mark.parametrize("shape", [(7,), (3, 5), (4, 1), (1,), (2, 3, 8)])
def test_errors_of_several_calls_are_those_of_each(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    expected = torch.randn(CALLS, *shape, generator=generator)
    found = expected + 1e-3 * torch.randn(expected.shape, generator=generator)
    expected[2], found[4] = 0.0, expected[4]
    together = relative_errors_of_calls({"y": found}, {"y": expected})["y"]
    alone = [relative_errors({"y": a}, {"y": b})["y"] for a, b in zip(found, expected, strict=True)]
    assert together == pytest.approx(alone)
