"""Tests of the calibration of linked passes: what a known pass costs, by a device that is told it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fib_bench.judge import known_calls
from fib_bench.judge.known_calls import EMPTY_KERNEL_NS, BoundKnownCalls, KnownCalls
from fib_bench.timing.linked import native

PASS_NS, WRITE_NS, GAP_NS, SPAN_GAP_NS = 40_000, 3_000, 1_000, 900


class Passes:
    """Passes of a device without noise: each call costs a pass, and each known call itself and a gap."""

    slots = 64
    output_bytes = (4096,)

    def __init__(self) -> None:
        self.made: list[tuple[int, int, int]] = []

    def compose(self, kind: int, calls: int, repeats: int = 1) -> int:
        """Compose nothing."""
        del kind, calls, repeats
        return 0

    def run(self, kind: int, calls: int, repeats: int = 1) -> Any:
        """A pass."""
        self.made.append((kind, calls, repeats))
        call_ns = WRITE_NS if kind == native.WRITE else EMPTY_KERNEL_NS
        taken_ns = calls * (PASS_NS + repeats * (call_ns + GAP_NS))
        return SimpleNamespace(calls=calls, taken_ns=taken_ns, span_ns=SPAN_GAP_NS + call_ns)

    def count(self, kind: int) -> int:
        """Number of passes of a kind that were made."""
        return sum(made == kind for made, _, _ in self.made)


@pytest.fixture
def known() -> KnownCalls:
    return KnownCalls(SimpleNamespace(), SimpleNamespace(), 1.0)  # type: ignore[arg-type]


def bound_to(known: KnownCalls, passes: Passes, key: object = "inputs") -> BoundKnownCalls:
    return BoundKnownCalls(known, passes, key)  # type: ignore[arg-type]


def test_the_overhead_is_that_of_a_pass_without_the_call(known: KnownCalls) -> None:
    bound = bound_to(known, Passes())
    for _ in range(6):
        bound.sample(30)
    overhead = bound.overhead(30)
    assert overhead.per_call.pass_ns == pytest.approx(PASS_NS + GAP_NS)
    assert overhead.per_call.span_ns == pytest.approx(SPAN_GAP_NS)
    assert (overhead.error.pass_ns, overhead.error.span_ns) == (0.0, 0.0)


def test_readings_next_to_a_function_count_for_the_next_one_of_the_same_kind(known: KnownCalls) -> None:
    first = bound_to(known, Passes())
    for _ in range(6):
        first.sample(30)
    passes = Passes()
    second = bound_to(known, passes)
    assert (second.count(30), second.preferred_calls) == (4, 30)
    assert bound_to(known, passes).count(31) == 0
    assert bound_to(known, passes, "other inputs").count(30) == 0
    second.sample(30)
    assert second.count(30) == 5
    assert passes.count(native.WRITE) == 2  # one loads code


def test_readings_of_long_ago_do_not(known: KnownCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(known_calls, "time", SimpleNamespace(monotonic=lambda: now[0]))
    bound_to(known, Passes()).sample(30)
    now[0] = 119.0
    assert bound_to(known, Passes()).count(30) == 1
    now[0] = 121.0
    assert bound_to(known, Passes()).count(30) == 0


def test_a_size_of_outputs_is_calibrated_once_and_empty_kernels_for_all(known: KnownCalls) -> None:
    for _ in range(2):
        passes = Passes()
        bound = bound_to(known, passes)
        bound.sample(30)
        bound.overhead(30)
    assert (passes.count(native.EMPTY), passes.count(native.WRITE)) == (0, 2)
    other = Passes()
    other.output_bytes = (8192,)
    bound = bound_to(known, other)
    bound.sample(30)
    bound.overhead(30)
    assert (other.count(native.EMPTY), other.count(native.WRITE)) == (0, 2 + 2 + 2 * 8)
