"""Tests of the progress lines: the estimate of the remaining time, and how often a log gets a line."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from fib_bench.cli.progress import LogProgress, Pace
from fib_bench.events import Evaluated, Working
from fib_schema import Definition, Trace, Workload
from hypothesis import assume, given
from hypothesis import strategies as st

MakeWorkload = Callable[..., Workload]


@given(
    start=st.floats(0, 30),
    each=st.floats(0.05, 5),
    definitions=st.integers(1, 8),
    workloads=st.integers(1, 20),
    solutions=st.integers(1, 6),
    prepare=st.floats(0, 0.5),
)
def test_after_a_tenth_of_the_run_the_estimate_is_within_a_factor_of_two(
    start: float, each: float, definitions: int, workloads: int, solutions: int, prepare: float
) -> None:
    """Starting takes any time; a definition's workloads are prepared first, each for less than an evaluation."""
    total = definitions * workloads * solutions
    assume(total >= 20)
    prepare *= each
    times, now = [], start
    for _ in range(definitions):
        now += prepare * workloads
        for _ in range(workloads * solutions):
            now += each
            times.append(now)
    clock = [0.0]
    pace = Pace(lambda: clock[0])
    pace.total = total
    for index, ended in enumerate(times[: total - 1], start=1):
        clock[0] = ended
        pace.add(1)
        if index >= max(2, total / 10):
            left = times[-1] - ended
            assert left / 2 <= pace.seconds_left <= 2 * left


def test_before_the_second_result_the_start_counts() -> None:
    clock = [0.0]
    pace = Pace(lambda: clock[0])
    pace.total = 3
    assert pace.seconds_left == 0.0
    clock[0] = 4.0
    pace.add(1)
    assert pace.seconds_left == pytest.approx(8.0)
    assert str(pace) == "[1/3 0.2/s 8s left]"
    clock[0] = 5.0
    pace.add(1)
    assert str(pace) == "[2/3 1.0/s 1s left]"


def test_a_log_has_a_line_at_least_every_five_seconds(make_workload: MakeWorkload, definition: Definition) -> None:
    clock, lines = [0.0], []
    progress = LogProgress(lambda line: lines.append((clock[0], line)), lambda: clock[0])
    progress.observe(Working("double", "slow", make_workload(definition, {"n": 4}, "abcdef0123")))
    for step in range(1, 61):
        clock[0] = step / 2
        progress.beat()
    times = [0.0, *(written for written, _ in lines), 30.0]
    assert max(after - before for before, after in itertools.pairwise(times)) <= 5.0
    assert len(lines) <= 8
    assert lines[0][1] == "[0/0 0.0/s 0s left] double [n=4] slow, for 4 s"


def test_a_log_is_quiet_while_results_come(make_result: Callable[..., Trace]) -> None:
    clock, lines = [0.0], []
    progress = LogProgress(lines.append, lambda: clock[0])
    for step in range(10):
        clock[0] = float(step)
        progress.observe(Evaluated(make_result("a", "1", 1.0)))
        progress.beat()
    assert len(lines) == 10
