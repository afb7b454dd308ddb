"""Tests of the progress lines: the estimate of the remaining time, and how often a log gets a line."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from fib_bench.cli.progress import LogProgress, Pace
from fib_bench.events import Evaluated, Working
from fib_schema import Definition, Trace, Workload

MakeWorkload = Callable[..., Workload]


def test_the_rate_counts_from_the_first_result() -> None:
    clock = [0.0]
    pace = Pace(lambda: clock[0])
    pace.total = 3
    clock[0] = 4.0
    pace.add(1)
    assert str(pace) == "[1/3]"
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
    assert lines[0][1] == "[0/0] double [n=4] slow, for 4 s"


def test_a_log_is_quiet_while_results_come(make_result: Callable[..., Trace]) -> None:
    clock, lines = [0.0], []
    progress = LogProgress(lines.append, lambda: clock[0])
    for step in range(10):
        clock[0] = float(step)
        progress.observe(Evaluated(make_result("a", "1", 1.0)))
        progress.beat()
    assert len(lines) == 10
