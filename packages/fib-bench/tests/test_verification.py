"""Tests of verification: which timed calls are compared with fresh answers, and what makes a pass invalid."""

import itertools
from collections import Counter
from types import SimpleNamespace

import attrs
import pytest
import torch
from fib_bench.checking.precision import LOW_PRECISION, relative_errors
from fib_bench.judge.device import DeviceContext
from fib_bench.judge.functions import BoundFunction
from fib_bench.judge.passes import MIN_VERIFIED, Sample, TimedPass, Verification
from fib_bench.judge.prepared import PreparedWorkload
from fib_bench.worker.client import NotCapturable, Rejected
from fib_schema import EvaluationStatus

from .samples import DOUBLE, make_workload

CALLS = 12


@attrs.define(eq=False, slots=False)
class Timed:
    """A function that doubles, its passes, and the reference; numbers of timed calls are their keys."""

    prepared: PreparedWorkload
    function: BoundFunction
    verification: Verification = attrs.field(init=False)
    calls: int = CALLS
    failure: str = ""
    is_captured: bool = False
    made: int = 0
    unwritten: list[int] = attrs.field(factory=list)
    asked: list[int] = attrs.field(factory=list)
    """The keys of calls for which a fresh answer was wanted."""

    def __attrs_post_init__(self):
        bound = self
        self.verification = Verification(
            self.function, bound, self.prepared, is_captured=self.is_captured, is_compared=True
        )

    # what `Passes` does

    def recompute(self, made, outputs):
        return self.unwritten

    def inputs_of(self, calls):
        targets = torch.zeros(len(calls), self.function.layout.input_bytes, dtype=torch.uint8)
        x = self.function.layout.input_tensors(targets)["x"]
        for index, (key, _) in enumerate(calls):
            x[index] = torch.randn(x.shape[1], generator=torch.Generator().manual_seed(key))
            x[index, 0] = key
        return targets

    # as the reference does

    def answer(self, inputs):
        if self.failure:
            return None
        x = self.function.layout.input_tensors(inputs)["x"]
        self.asked += x[:, 0].int().tolist()
        outputs = torch.zeros(len(x), self.function.layout.output_bytes, dtype=torch.uint8)
        self.function.layout.output_tensors(outputs)["y"].copy_(x * 2)
        return outputs

    # passes

    def run(self, change=lambda y: None, sample=Sample.PUBLISHED):
        """Time a pass whose outputs, ``[calls, n]``, are changed."""
        keys = list(range(self.made, self.made + CALLS))
        self.made += CALLS
        self.function.slots.inputs[:] = self.inputs_of([(key, 0) for key in keys])
        x = self.function.layout.input_tensors(self.function.slots.inputs)["x"]
        y = self.function.layout.output_tensors(self.function.slots.outputs)["y"]
        y.copy_(x * 2)
        change(y)
        timed = TimedPass([1] * CALLS, [(0, 0, key) for key in keys], [1] * CALLS, [0] * CALLS, None, 0, None)
        self.verification.add(timed, sample)

    def finish(self):
        self.verification.finish(self.answer)


@pytest.fixture
def make_timed(make_judge, device_context):
    opened = []

    def make(n=64, **fields):
        prepared = make_judge().prepare(DOUBLE, make_workload(DOUBLE, {"n": n}))
        function = SimpleNamespace(worker=SimpleNamespace(waited_seconds=0.0), context=device_context, has_setup=False)
        opened.append(BoundFunction(function, prepared.layout, CALLS))
        return Timed(prepared, opened[-1], **fields)

    yield make
    for function in opened:
        function.slots.close()


def test_detected_share_follows_from_what_was_compared(make_timed):
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


def test_calls_of_all_passes_are_compared_alike(make_timed):
    passes, found = 20, Counter[int]()
    made = make_timed(8)
    for _ in range(15):
        timed = Timed(made.prepared, made.function)
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


def test_moved_calls_are_compared_in_any_case_and_not_counted(make_timed):
    timed = make_timed()
    for _ in range(10):
        timed.run()
    timed.run(sample=Sample.MOVED)
    timed.finish()
    assert len([key for key in timed.asked if key >= 10 * CALLS]) == 4
    extra = timed.verification.to_extra()
    assert extra["timed_calls"] == 10 * CALLS
    assert extra["verified_calls"] == len(timed.asked) - 4


@pytest.mark.parametrize(("seconds", "least"), [(0.15, MIN_VERIFIED), (60.0, 7)])
def test_a_slow_reference_answers_for_the_published_latency(make_timed, monkeypatch, seconds, least):
    """Its answers about other calls say little about those: `detected_share` is of the published ones alone."""
    timed, now = make_timed(), itertools.count()
    monkeypatch.setattr(DeviceContext, "seconds", lambda _: seconds * next(now))
    for sample in (Sample.PUBLISHED, Sample.OTHER, Sample.OTHER, Sample.OTHER):
        timed.run(sample=sample)
    timed.finish()
    published = sum(key < CALLS for key in timed.asked)
    assert least <= published
    extra = timed.verification.to_extra()
    assert extra["timed_calls"] == 4 * CALLS
    assert extra["verified_calls"] == len(timed.asked) <= 1.5 * published + 1
    assert 0.5 > extra["detected_share"] == pytest.approx(1 - 0.01 ** (1 / published), abs=1e-4)


@pytest.mark.parametrize("has_one_rule", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda y: y[:, 5].add_(1.0), id="one element"),
        pytest.param(lambda y: y.copy_(y.roll(1, dims=0)), id="of another call"),
    ],
)
def test_wrong_outputs_are_found_and_named(make_timed, change, has_one_rule, monkeypatch):
    timed = make_timed()
    monkeypatch.setattr(type(timed.prepared.checker.evaluator), "has_one_rule", has_one_rule)
    timed.run(change)
    with pytest.raises(Rejected, match=r"y: \d+ of 64 wrong; first \[.*; timed calls") as caught:
        timed.finish()
    assert caught.value.status is EvaluationStatus.INCORRECT_NUMERICAL


def test_a_capture_may_have_missed_work(make_timed):
    """Then eager calls decide, and there it is a verdict."""
    for is_captured, error in ((True, NotCapturable), (False, Rejected)):
        timed = make_timed(is_captured=is_captured)
        timed.unwritten = [3]
        timed.run()
        with pytest.raises(error, match="1 of 12 timed calls left outputs unwritten"):
            timed.verification.verify()
        timed.unwritten = []
        timed.run(lambda y: y.zero_())
        with pytest.raises(error, match="y: "):
            timed.finish()


def test_a_reference_that_fails_ends_the_comparison(make_timed):
    timed = make_timed(failure="it stumbled")
    timed.run(lambda y: y.zero_())
    timed.finish()
    assert timed.verification.to_extra()["detected_share"] is None


def test_too_few_bits_are_seen_in_timed_outputs(make_timed):
    for change, flags in ((lambda y: None, []), (lambda y: y.copy_(y.bfloat16().float()), [LOW_PRECISION])):
        timed = make_timed(4096)
        timed.run(change)
        timed.finish()
        assert timed.verification.precision.flags() == flags


def test_a_judge_that_waits_goes_before_the_verification_of_the_next_pass(make_timed, device_context):
    """Verification takes milliseconds for each pass, in which all others would wait for a burst."""
    timed, turns = make_timed(), list[str]()
    lock = SimpleNamespace(is_shared=True, is_wanted=True, give_way=lambda: turns.append("other judge"))
    timed.function.context = attrs.evolve(device_context, lock=lock, takes_turns=True)
    timed.recompute = lambda made, outputs: turns.append("pass") or []
    timed.run()
    timed.run()
    timed.verification.verify()
    assert turns == ["other judge", "pass"] * 2


@pytest.mark.parametrize("shape", [(7,), (3, 5), (4, 1), (1,), (2, 3, 8)])
def test_errors_of_several_calls_are_those_of_each(shape):
    generator = torch.Generator().manual_seed(1)
    expected = torch.randn(CALLS, *shape, generator=generator)
    found = expected + 1e-3 * torch.randn(expected.shape, generator=generator)
    expected[2], found[4] = 0.0, expected[4]
    together = relative_errors({"y": found}, {"y": expected})["y"]
    alone = [relative_errors({"y": found[i : i + 1]}, {"y": expected[i : i + 1]})["y"] for i in range(CALLS)]
    assert together == pytest.approx([error for (error,) in alone])
