"""Tests of the in-process evaluation of trusted code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fib_bench import Benchmark, BenchmarkConfig
from fib_bench.flags import CPU_TIMING
from fib_schema import Solution, TraceSet

MakeDataSet = Callable[..., Path]
MakeSolution = Callable[..., Solution]
FAST = {"in_process_trusted": True, "measure_seconds": 0.002, "iterations": 3, "warmup_runs": 1}


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("def run(x):\n    return x * 2\n", "PASSED"),
        ("def run(x):\n    return x * 3\n", "INCORRECT_NUMERICAL"),
        ("def run(x):\n    return x.double() * 2\n", "INCORRECT_DTYPE"),
        ("def run(x):\n    return (x * 2)[1:]\n", "INCORRECT_SHAPE"),
        ("def run(x):\n    raise ValueError('no')\n", "RUNTIME_ERROR"),
        ("def run(x:\n", "COMPILE_ERROR"),
    ],
)
def test_verdicts_are_those_of_a_judge(
    make_data_set: MakeDataSet, make_solution: MakeSolution, code: str, status: str
) -> None:
    root = make_data_set(make_solution(code, name="one"), sizes=(5,))
    result = Benchmark(TraceSet.from_path(root), BenchmarkConfig(**FAST)).run()
    (trace,) = [trace for trace in TraceSet.from_path(root).traces["double"] if trace.solution]
    assert trace.evaluation is not None
    assert trace.evaluation.status == status
    assert trace.evaluation.flags == (("trusted", CPU_TIMING) if status == "PASSED" else ("trusted",))
    assert (trace.evaluation.performance is not None) == (status == "PASSED")
    assert result.failures == ()


def test_written_into_a_buffer(make_data_set: MakeDataSet, make_solution: MakeSolution) -> None:
    code = "def run(x, y):\n    y.copy_(x * 2)\n"
    root = make_data_set(make_solution(code, name="one", dps=True), sizes=(5,))
    (trace,) = Benchmark(TraceSet.from_path(root), BenchmarkConfig(**FAST)).run().traces
    assert trace.is_successful()


def test_it_is_never_the_default() -> None:
    assert BenchmarkConfig().in_process_trusted is False
