"""Tests of CPU results in reports: labelled, unranked, and without numbers for interpreted kernels."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path

import pytest
from fib_bench.cli.main import main
from fib_bench.cli.tables import print_comparison, print_leaderboard
from fib_bench.report import best, leaderboard
from fib_bench.report.comparing import Run, compare
from fib_bench.report.leaderboard import format_trace
from fib_schema import Trace, TraceSet
from fib_schema.trace_facts import CPU_TIMING, INTERPRETED, OLDER_TIMING
from rich.console import Console

MakeResult = Callable[..., Trace]
Make = Callable[..., Trace]


@pytest.fixture
def timed(make_result: MakeResult) -> Make:
    """A trace of the CPU with narrow intervals; the reference takes 2 ms unless it is given."""

    def make(
        solution: str,
        workload: str,
        latency_ms: float,
        *,
        reference_ms: float = 2.0,
        flags: Sequence[str] = (CPU_TIMING,),
        method: str = "cpu",
    ) -> Trace:
        extra = {
            "timing": {"interval_ms": [latency_ms * 0.99, latency_ms * 1.01], "method": method},
            "reference_timing": {"interval_ms": [reference_ms * 0.99, reference_ms * 1.01], "method": method},
        }
        return make_result(
            solution, workload, latency_ms, reference_ms=reference_ms, flags=flags, performance_extra=extra
        )

    return make


def in_memory(*traces: Trace) -> TraceSet:
    return TraceSet(traces={"double": list(traces)})


def printed(show: Callable[[Console], None]) -> str:
    console = Console(width=160, record=True, file=StringIO())
    show(console)
    return console.export_text()


class TestLeaderboard:
    def test_cpu_results_are_shown_with_a_ratio_and_in_no_order(self, timed: Make) -> None:
        rows = leaderboard(in_memory(timed("b_fast", "1", 0.5), timed("a_slow", "1", 1.0)))
        assert [(row.solution, row.is_ranked, row.speedup.text) for row in rows] == [
            ("a_slow", False, "2.00x ± 0.05"),
            ("b_fast", False, "4.00x ± 0.09"),
        ]
        assert {row.labels for row in rows} == {(CPU_TIMING,)}
        assert {row.fast_1 for row in rows} == {0.0}
        assert {row.problem for row in rows} == {""}

    def test_they_are_ordered_if_they_are_included(self, timed: Make) -> None:
        trace_set = in_memory(timed("a_slow", "1", 1.0), timed("b_fast", "1", 0.5))
        rows = leaderboard(trace_set, [CPU_TIMING])
        assert [(row.solution, row.is_ranked, row.fast_1) for row in rows] == [
            ("b_fast", True, 1.0),
            ("a_slow", True, 1.0),
        ]

    def test_ranked_results_come_first_and_others_have_no_share(self, timed: Make) -> None:
        rows = leaderboard(in_memory(timed("cpu", "1", 0.1), timed("device", "1", 1.0, flags=(), method="handshake")))
        assert [(row.solution, row.fast_1) for row in rows] == [("device", 1.0), ("cpu", 0.0)]

    def test_traces_of_older_methods_are_not_ordered_among_others(self, timed: Make) -> None:
        old = timed("old", "1", 0.1, flags=(), method="linked")
        (alone,) = leaderboard(in_memory(old))
        assert (alone.is_ranked, alone.timed_by) == (True, ("linked",))
        mixed = in_memory(old, timed("new", "1", 1.0, flags=(), method="handshake"))
        rows = leaderboard(mixed)
        assert [(row.solution, row.is_ranked, row.labels) for row in rows] == [
            ("new", True, ()),
            ("old", False, (OLDER_TIMING,)),
        ]
        assert [row.solution for row in best(mixed)] == ["new"]
        text = printed(lambda console: print_leaderboard(console, rows))
        assert f"{OLDER_TIMING}: no order for 1 solution" in text

    def test_a_speedup_that_another_trace_of_the_run_contradicts_is_wide(self, timed: Make) -> None:
        """The reference took 2 ms beside one solution and 100 ms beside the other: the machine was busy."""
        rows = leaderboard(in_memory(timed("a", "1", 1.0), timed("b", "1", 2.0, reference_ms=100.0)))
        assert [(row.solution, row.speedup.mark) for row in rows] == [
            ("a", "wide"),
            ("b", "noise"),
        ]
        assert rows[1].speedup.interval == pytest.approx((1.98 / 2.02, 101 / 1.98))

    def test_a_wide_interval_of_a_workload_is_not_averaged_out(self, timed: Make) -> None:
        precise = [timed("a", str(n), 1.0) for n in range(9)]
        disturbed = [timed("a", "9", 1.0), timed("b", "9", 1.0, reference_ms=3.0)]
        rows = {row.solution: row for row in leaderboard(in_memory(*precise, *disturbed))}
        assert rows["a"].speedup.mark == "wide"

    def test_the_table_says_what_it_shows(self, timed: Make) -> None:
        rows = leaderboard(in_memory(timed("a", "1", 1.0), timed("b", "1", 0.5)))
        text = printed(lambda console: print_leaderboard(console, rows))
        assert f"double ({CPU_TIMING})" in text
        assert f"{CPU_TIMING}: no order for 2 solutions (--include-unranked orders them)" in text
        assert "fast_" not in text

    def test_interpreted_kernels_have_no_latency_and_no_speedup(self, timed: Make) -> None:
        flags = (CPU_TIMING, INTERPRETED)
        rows = leaderboard(in_memory(timed("t", "1", 0.5, flags=flags)), flags)
        assert [(row.latency_ms, row.speedup.point, row.speedup.text, row.problem) for row in rows] == [
            (None, None, "-", "")
        ]
        text = printed(lambda console: print_leaderboard(console, rows))
        assert INTERPRETED in text
        assert "500" not in text


class TestBest:
    def test_leaves_them_out_unless_they_are_included(
        self, write_set: Callable[..., Path], timed: Make, capsys: pytest.CaptureFixture[str]
    ) -> None:
        root = str(write_set(timed("a", "1", 1.0), timed("b", "1", 0.5)))
        assert main(["report", "best", root]) == 0
        out, err = capsys.readouterr()
        assert out == ""
        assert f"left out: 2 traces, {CPU_TIMING} (--include-unranked includes them)" in " ".join(err.split())
        assert main(["report", "best", root, "--include-unranked", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["solution"], row["labels"], row["timed_by"]) == ("b", [CPU_TIMING], "cpu")

    def test_never_has_an_interpreted_kernel(self, timed: Make) -> None:
        trace_set = in_memory(timed("t", "1", 1.0, flags=(CPU_TIMING, INTERPRETED)))
        assert best(trace_set, allow_flags=[CPU_TIMING]) == []

    def test_a_tie_is_marked_and_has_its_interval_in_json(
        self, write_set: Callable[..., Path], timed: Make, capsys: pytest.CaptureFixture[str]
    ) -> None:
        root = write_set(timed("a", "1", 2.0, flags=(), method="handshake"))
        assert main(["report", "best", str(root), "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["speedup"]["value"], row["speedup"]["mark"]) == (1.0, "noise")
        assert row["speedup"]["interval"] == pytest.approx([1.98 / 2.02, 2.02 / 1.98])


class TestCompare:
    def test_cpu_timings_are_shown_and_not_compared(self, timed: Make) -> None:
        runs = Run(in_memory(timed("a", "1", 1.0)), "old"), Run(in_memory(timed("a", "1", 5.0)), "new")
        found = compare(*runs)
        (pair,) = found.pairs
        assert (pair.verdict, pair.before_ms, pair.after_ms, pair.ratio.point) == ("unranked", 1.0, 5.0, None)
        assert (pair.reason, found.is_worse) == (CPU_TIMING, False)
        assert f"1 {CPU_TIMING}" in printed(lambda console: print_comparison(console, found))
        assert compare(*runs, allow_flags=[CPU_TIMING]).is_worse

    def test_one_that_fails_is_broken_all_the_same(self, timed: Make, make_result: MakeResult) -> None:
        found = compare(Run(in_memory(timed("a", "1", 1.0)), "old"), Run(in_memory(make_result("a", "1")), "new"))
        assert [pair.verdict for pair in found.pairs] == ["broken"]

    @pytest.mark.parametrize(
        ("methods", "reason"),
        [
            (("handshake", "eager"), "latencies of different kinds: device -> call"),
            (("linked", "handshake"), "latencies of different kinds: device, older timing -> device"),
        ],
    )
    def test_latencies_of_different_kinds_are_not_compared(
        self, timed: Make, methods: tuple[str, str], reason: str
    ) -> None:
        old, new = (in_memory(timed("a", "1", 1.0, flags=(), method=method)) for method in methods)
        (pair,) = compare(Run(old, "old"), Run(new, "new")).pairs
        assert (pair.verdict, pair.ratio.text, pair.timed_by) == ("unmeasured", "-", " -> ".join(methods))
        assert pair.reason == reason

    def test_a_large_change_with_wide_intervals_is_marked(self, make_result: MakeResult) -> None:
        traces = [
            make_result("a", "1", ms, performance_extra={"timing": {"interval_ms": [ms * 0.8, ms * 1.2]}})
            for ms in (1.0, 3.0)
        ]
        found = compare(Run(in_memory(traces[0]), "old"), Run(in_memory(traces[1]), "new"))
        assert [(p.verdict, p.ratio.point, p.ratio.mark) for p in found.pairs] == [("slower", 3.0, "wide")]


def test_progress_has_no_speedup_of_a_cpu_timing(timed: Make) -> None:
    assert format_trace(timed("a", "1", 1.0)) == f"double [n=4] a: PASSED 1.00 ms ± 0.01, {CPU_TIMING}, timed by: cpu"
    assert format_trace(timed("a", "1", 1.0, flags=(CPU_TIMING, INTERPRETED))) == (
        f"double [n=4] a: PASSED {CPU_TIMING}, {INTERPRETED}"
    )
