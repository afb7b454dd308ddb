"""Tests of the host timer: the judge's clock around single calls, less the cost of a request."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fib_bench import ResolvedEvalConfig
from fib_bench.judge import host_timing
from fib_bench.judge.evaluate import Judge
from fib_bench.judge.host_timing import HostTimer
from fib_bench.judge.prepared import PreparedWorkload
from fib_bench.judge.rpc import Rejected
from fib_bench.judge.timed_function import TimedFunction
from fib_bench.judge.verification import Verifier
from fib_bench.timing import StopRule
from fib_bench.transport.messages import Call, Called
from fib_schema import Definition, EvaluationStatus, Workload

REQUEST_NS, CALL_NS = 100_000, 2_000_000
RULE = StopRule(iterations=5, max_iterations=5, confidence=1.0, max_seconds=math.inf, busy_seconds=math.inf)


class FakeWorker(TimedFunction):
    """Doubles its input; its calls take as long as they are told by a clock that only they move."""

    def ask(self, request: Any, reply: Any, **options: Any) -> Any:
        """Answer calls here, and all else nowhere."""
        if not isinstance(request, Call):
            return None
        self.now_ns += self.null_ns if request.is_null else REQUEST_NS + CALL_NS
        if not request.is_null:
            self.calls.append(request.slot)
            x = self.layout.input_tensors(self.slots.inputs[request.slot])["x"]
            self.layout.output_tensors(self.slots.outputs[request.slot])["y"].copy_(x * self.factor)
        return Called()


@pytest.fixture
def prepared(
    make_judge: Callable[..., Judge], definition: Definition, make_workload: Callable[..., Workload]
) -> PreparedWorkload:
    return make_judge().prepare(definition, make_workload(definition, {"n": 8}))


@pytest.fixture
def function(prepared: PreparedWorkload, device_context: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    found: Any = FakeWorker(SimpleNamespace(), prepared.layout, 8, device_context)  # type: ignore[arg-type]
    found.now_ns, found.null_ns, found.factor, found.calls = 0, REQUEST_NS, 2.0, []
    clock = SimpleNamespace(perf_counter_ns=lambda: found.now_ns, monotonic=lambda: found.now_ns / 1e9)
    monkeypatch.setattr(host_timing, "time", clock)
    with found:
        yield found


def measured(
    function: Any, prepared: PreparedWorkload, trusted_null_ns: Callable[[], float] | None = None
) -> HostTimer:
    timer = HostTimer(function, Verifier(function), trusted_null_ns)
    timer.warm_up(prepared, ResolvedEvalConfig(warmup_runs=3))
    while not timer.is_done(RULE):
        timer.sample(prepared)
    return timer


def test_a_latency_is_what_a_call_adds_to_a_request(function: Any, prepared: PreparedWorkload) -> None:
    found = measured(function, prepared).measurement()
    assert found.method == "host"
    assert found.samples_ns == (CALL_NS,) * 5
    assert (found.overhead_ns, found.host_ns) == (REQUEST_NS, REQUEST_NS + CALL_NS)


def test_slow_null_calls_shorten_nothing(function: Any, prepared: PreparedWorkload) -> None:
    """The worker of the reference tells what a request takes at most."""
    function.null_ns = CALL_NS
    found = measured(function, prepared, lambda: float(REQUEST_NS)).measurement()
    assert found.samples_ns == (CALL_NS,) * 5


def test_nothing_is_subtracted_without_a_trusted_worker(function: Any, prepared: PreparedWorkload) -> None:
    found = measured(function, prepared, lambda: 0.0).measurement()
    assert found.samples_ns == (REQUEST_NS + CALL_NS,) * 5


def test_calls_are_made_in_unpredictable_slots(function: Any, prepared: PreparedWorkload) -> None:
    timer = measured(function, prepared)
    for _ in range(60):
        timer.sample(prepared)
    assert len(set(function.calls)) == 8


def test_outputs_are_verified(function: Any, prepared: PreparedWorkload) -> None:
    timer = measured(function, prepared)
    function.factor = 3.0

    def sample_often() -> None:
        end = time.monotonic() + 300  # it takes seconds; how often the reference is asked depends on the time it takes
        while time.monotonic() < end:
            timer.sample(prepared)

    with pytest.raises(Rejected) as caught:
        sample_often()
    assert caught.value.status is EvaluationStatus.INCORRECT_NUMERICAL
