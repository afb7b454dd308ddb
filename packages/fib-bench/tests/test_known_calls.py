"""Tests of the calibration of linked passes: what a known pass costs, by a device that is told it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from fib_bench.judge.baselines import REFERENCE, Baselines
from fib_bench.judge.known_calls import EMPTY_KERNEL_NS, BoundKnownCalls, EmptyCalls, KnownCalls
from fib_bench.timing.linked import native
from fib_bench.worker.server_client import ForkServerClient
from fib_schema import Definition

PASS_NS, WRITE_NS, GAP_NS, SPAN_GAP_NS, FLUSH_NS = 40_000, 3_000, 1_000, 900, 26_000


class Passes:
    """Passes of a device without noise: each call costs a pass, a flush, the known call itself and a gap."""

    slots = 64

    def __init__(self) -> None:
        self.made: list[int] = []
        self.flush_ns: dict[tuple[int, int], int] = {}

    def alone(self) -> AbstractContextManager[None]:
        """Nothing to exclude."""
        return nullcontext()

    def compose(self, kind: int, calls: int, flush_ns: int) -> int:
        """Note the least duration of a flush."""
        self.flush_ns[kind, calls] = flush_ns
        return 0

    def run(self, kind: int, calls: int, *, is_timed: bool = True) -> Any:
        """A pass."""
        del is_timed
        self.made.append(kind)
        call_ns = WRITE_NS if kind == native.WRITE else EMPTY_KERNEL_NS
        flush_ns = max(FLUSH_NS, self.flush_ns[kind, calls])
        taken_ns = calls * (PASS_NS + flush_ns + call_ns + GAP_NS)
        return SimpleNamespace(calls=calls, taken_ns=taken_ns, span_ns=SPAN_GAP_NS + call_ns, flush_ns=flush_ns)


def test_a_flush_takes_somewhat_longer_than_it_needs() -> None:
    empty = EmptyCalls.measure(Passes())  # type: ignore[arg-type]
    assert empty.flush_ns == pytest.approx(1.1 * FLUSH_NS, abs=1)
    assert (empty.gap_ns, empty.error_ns) == (SPAN_GAP_NS, 0.0)


def test_the_overhead_is_that_of_a_pass_without_the_call() -> None:
    passes = Passes()
    bound = BoundKnownCalls(passes, EmptyCalls.measure(passes))  # type: ignore[arg-type]
    bound.compose(30)
    assert bound.overhead_ns(30) == pytest.approx(PASS_NS + int(1.1 * FLUSH_NS) + GAP_NS)


def test_a_length_is_composed_once() -> None:
    passes = Passes()
    bound = BoundKnownCalls(passes, EmptyCalls.measure(passes))  # type: ignore[arg-type]
    for _ in range(3):
        bound.compose(30)
        bound.overhead_ns(30)
    assert passes.made.count(native.WRITE) == 1 + 1  # one loads code


def test_a_pass_serves_for_four_passes_of_functions_until_others_use_the_device() -> None:
    passes = Passes()
    bound = BoundKnownCalls(passes, EmptyCalls.measure(passes))  # type: ignore[arg-type]
    bound.compose(30)
    for _ in range(5):
        bound.overhead_ns(30)
    assert passes.made.count(native.WRITE) == 1 + 2
    bound.forget()
    bound.overhead_ns(30)
    assert passes.made.count(native.WRITE) == 1 + 3


@pytest.mark.parametrize(("held_bytes", "is_kept"), [(1 << 20, True), (1 << 30, False)])
def test_the_worker_stays_for_the_next_definition_unless_it_holds_much_memory(
    server: ForkServerClient, definition: Definition, held_bytes: int, is_kept: bool
) -> None:
    baselines, known = Baselines(server, "cpu", 60.0, {}), KnownCalls(server, torch.device("cpu"), 60.0)
    baselines._known_calls = known  # the CPU needs none
    try:
        baselines.worker(REFERENCE, definition)
        worker = known._ready_worker()
        known._held_bytes = held_bytes
        baselines.worker(REFERENCE, attrs.evolve(definition, name="next"))
        assert worker.is_closed is not is_kept
        assert known.worker is (worker if is_kept else None)
    finally:
        baselines.close()
    assert worker.is_closed
