"""Tests of the CPU timer: reported samples must be durations, and throttled samples do not count."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from fib_bench.judge.throttling import ThrottlingFilter
from fib_schema import Evaluation, EvaluationStatus, Solution, Workload

Evaluate = Callable[..., list[Evaluation]]
MakeSolution = Callable[..., Solution]
MakeWorkload = Callable[..., Workload]

BLIND = """
from fib_bench.worker import tamper_check
for name in dir(tamper_check):
    if hasattr(getattr(tamper_check, name), "findings"):
        getattr(tamper_check, name).findings = lambda *_: []
"""
"""The check for replaced functions runs in the worker and can be replaced as well."""
DOUBLE = "def run(x):\n    return x * 2\n"


def test_a_latency_is_flagged_as_unranked(evaluate: Evaluate, make_solution: MakeSolution) -> None:
    (evaluation,) = evaluate(make_solution("import time\ndef run(x):\n    time.sleep(0.003)\n    return x * 2\n"))
    assert evaluation.status is EvaluationStatus.PASSED
    assert evaluation.flags == ("unranked: cpu timing",)
    assert evaluation.performance is not None
    assert evaluation.performance.latency_ms >= 3
    assert evaluation.performance.extra is not None
    timing = evaluation.performance.extra["timing"]
    assert timing["method"] == "cpu"
    assert timing["verified_calls"] >= 4


@pytest.mark.parametrize(
    "samples",
    ["[-1.0] * n", "[0.0] * n", "[float('nan')] * n", "[float('inf')] * n", "[]", "[1.0] * (n + 1)", "[1.0] * (n - 1)"],
)
def test_samples_that_are_no_durations_are_refused(
    evaluate: Evaluate, make_solution: MakeSolution, samples: str
) -> None:
    replaced = f"""
from fib_bench.timing.host import HostStopwatch
honest = HostStopwatch.sample
def sample(self, n):
    honest(self, n)
    return {samples}
HostStopwatch.sample = sample
"""
    (evaluation,) = evaluate(make_solution(BLIND + replaced + DOUBLE))
    assert evaluation.status is EvaluationStatus.REWARD_HACK
    assert re.match(r"the worker answered a request to time \d+ samples with Sampled\(", evaluation.log)


def test_samples_for_calls_that_were_not_made_are_caught(evaluate: Evaluate, make_solution: MakeSolution) -> None:
    made_up = """
from fib_bench.timing.host import HostStopwatch
HostStopwatch.sample = lambda self, chains: [100.0] * chains
"""
    (evaluation,) = evaluate(make_solution(BLIND + made_up + DOUBLE))
    assert evaluation.status is EvaluationStatus.REWARD_HACK
    assert evaluation.log.endswith("\n32 of 32 timed calls wrote no outputs")


@pytest.mark.parametrize("taken_ns", ['float("nan")', "-1.0"])
def test_a_warm_up_that_cannot_be_is_a_forgery(evaluate: Evaluate, make_solution: MakeSolution, taken_ns: str) -> None:
    replaced = f"""
from fib_bench.timing.host import HostStopwatch
HostStopwatch.warm_up = lambda *_, **__: {taken_ns}
"""
    (evaluation,) = evaluate(make_solution(BLIND + replaced + DOUBLE))
    assert evaluation.status is EvaluationStatus.REWARD_HACK


@pytest.mark.parametrize(
    ("code", "replaced"),
    [
        ("import time\ntime.perf_counter = lambda: 0.0\n", "time.perf_counter"),
        (
            "from fib_bench.timing.host import HostStopwatch\n"
            "HostStopwatch.sample = lambda self, chains: [1.0] * chains\n",
            "fib_bench.timing.host.HostStopwatch.sample",
        ),
    ],
)
def test_what_was_replaced_is_named(evaluate: Evaluate, make_solution: MakeSolution, code: str, replaced: str) -> None:
    (evaluation,) = evaluate(make_solution(code + DOUBLE))
    assert evaluation.status is EvaluationStatus.REWARD_HACK
    assert f"replaced {replaced}" in evaluation.log


@attrs.define
class FakeWatch:
    """A clock monitor that gives what it is told, the last answer again and again."""

    throttled: list[bool]

    def was_throttled(self, seconds: float) -> bool:
        """Whether it was."""
        return self.throttled.pop(0) if len(self.throttled) > 1 else self.throttled[0]

    def clock_mhz(self, seconds: float) -> int:
        """Always the same."""
        return 1500

    def stop(self) -> None:
        """Do nothing."""


class TestThrottling:
    def test_throttled_passes_are_discarded_and_counted(self) -> None:
        watch: Any = FakeWatch([True, True, False])
        found = ThrottlingFilter(watch)
        assert [found.accepts(0.0) for _ in range(4)] == [False, False, True, True]
        assert found.to_extra() == {"sm_clock_mhz": 1500, "throttled_passes": 2}

    def test_a_device_that_is_always_throttled_is_measured_as_it_is(self) -> None:
        watch: Any = FakeWatch([True])
        found = ThrottlingFilter(watch)
        assert [found.accepts(0.0) for _ in range(25)] == [False] * 20 + [True] * 5

    def test_without_a_monitor_every_pass_counts(self) -> None:
        found = ThrottlingFilter(None)
        assert found.accepts(0.0)
        assert found.to_extra() == {}
