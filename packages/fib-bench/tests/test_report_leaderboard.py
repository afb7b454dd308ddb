"""Tests of the leaderboard: shares of workloads, baselines, devices, and traces with few fields."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable

import pytest
from fib_bench.report import best, leaderboard
from fib_bench.report.ratios import light_of
from fib_schema import Performance, Trace, TraceSet

MakeResult = Callable[..., Trace]


def in_memory(*traces: Trace) -> TraceSet:
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.definition, []).append(trace)
    return TraceSet(traces=groups)


class TestFast1:
    def test_is_the_share_of_tried_workloads_on_which_a_solution_passes_and_is_faster_than_the_reference(
        self, make_result: MakeResult
    ) -> None:
        """The reference takes 1 ms. A solution that is slower has no share, also if it is the only one."""
        trace_set = in_memory(
            make_result("a", "1", 0.5),
            make_result("a", "2", 0.9),
            make_result("a", "3"),
            make_result("slower", "1", 1.1),
            make_result("slower", "4", 30.0),
        )
        assert {row.solution: row.fast_1 for row in leaderboard(trace_set)} == {"a": 0.5, "slower": 0.0}

    def test_a_speedup_that_is_noise_is_not_faster_and_an_imprecise_one_counts_by_its_lower_bound(
        self, make_result: MakeResult
    ) -> None:
        def timed(name: str, low: float, high: float) -> Trace:
            return make_result(
                name, "1", 1.0, reference_ms=2.0, performance_extra={"timing": {"interval_ms": [low, high]}}
            )

        rows = leaderboard(in_memory(timed("noise", 0.5, 2.5), timed("imprecise", 0.5, 1.5)))
        assert {row.speedup.text: row.fast_1 for row in rows} == {"noise": 0.0, "imprecise": 1.0}

    @pytest.mark.parametrize("speedup", [math.nan, math.inf, 0.0])
    def test_speedups_that_are_no_numbers_count_as_none(self, make_result: MakeResult, speedup: float) -> None:
        (row,) = leaderboard(in_memory(make_result("a", "1", 1.0, speedup=speedup)))
        assert (row.speedup.value, row.passed, row.fast_1) == (None, 1, 0.0)


class TestBaseline:
    def test_timed_in_turns_it_is_taken_from_the_trace(self, make_result: MakeResult) -> None:
        extra = {"baseline": {"solution": "lib", "latency_ms": 2.0, "speedup_factor": 4.0}}
        (row,) = leaderboard(in_memory(make_result("a", "1", 0.5, performance_extra=extra)))
        assert (row.baseline, row.baseline_speedup.value) == ("lib", pytest.approx(4.0))


def test_devices_are_ranked_apart(make_result: MakeResult) -> None:
    """A solution is not slow because another one ran on a faster device."""
    trace_set = in_memory(make_result("a", "1", 0.9, hardware="old"), make_result("b", "1", 0.1, hardware="new"))
    assert [(row.hardware, row.solution, row.fast_1) for row in leaderboard(trace_set)] == [
        ("old", "a", 1.0),
        ("new", "b", 1.0),
    ]
    assert [(row.hardware, row.solution) for row in best(trace_set)] == [("old", "a"), ("new", "b")]


def test_a_latency_that_is_no_number_is_never_the_best(make_result: MakeResult) -> None:
    assert [row.solution for row in best(in_memory(make_result("a", "1", 0.0), make_result("b", "1", 1.0)))] == ["b"]


@pytest.mark.parametrize(
    "extra",
    [
        None,
        {},
        {"timing": None, "speed_of_light": 3, "baseline": []},
        {"timing": {"interval_ms": [2.0, 1.0]}, "speed_of_light": {"bytes": "many"}, "baseline": {"solution": 1}},
        {"timing": {"interval_ms": ["NaN", True]}, "speed_of_light": {"attainable_fraction": math.nan}},
        {"timing": {"interval_ms": [1.0]}, "baseline": {"solution": "lib", "speedup_factor": -1}},
    ],
)
def test_what_a_trace_does_not_say_is_none(extra: dict[str, object] | None) -> None:
    assert light_of(Performance(1.0, 1.0, 1.0, extra)) is None


def test_reports_import_no_torch() -> None:
    modules = "fib_bench.cli.main fib_bench.report.page fib_bench.report.merging"
    code = (
        f"import json, sys\nfor name in {modules.split()!r}: __import__(name)\nprint(json.dumps(sorted(sys.modules)))"
    )
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)
    assert not {"torch", "numpy", "vl_convert"} & set(loaded)
